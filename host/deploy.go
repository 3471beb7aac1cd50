package host

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/address"
	"github.com/elemental-conduit/conduit/internal/pluginlink"
)

// MaxDeploy is how large a binary may be that an operator deploys, in bytes.
const MaxDeploy = 1 << 30

// Upload is a plugin binary as an operator sends it.
type Upload struct {
	// Name is that of the deployment.
	Name string
	// Transient keeps it in the host's private directory, until the host ends.
	Transient bool
	// Replace lets it take the place of a deployment of that name.
	Replace bool
	// Size is how many bytes Body has, Sum is their SHA-256 in hex.
	Size int64
	Sum  string
	Body io.Reader
}

// Deploy takes a plugin binary. It is read to its end and examined as a scan examines a
// file; then it is started, without being configured, to say what it is. Only then does
// it get its name in the deployments directory: at every moment that has the old file or
// the new one, whole, also after a crash. So what is there is the operator's, or anybody's
// who can write the directory; it outlives the host. What is deployed serves as after any
// other change of the directory, by a hot swap where the deployment was there already.
//
// Deploy returns when the new process serves, or the deployment is disabled, or when it
// has the same bytes already and they serve: then nothing is started. Errors:
// bad_deployment, deployment_exists and not_writable of outcome refused leave everything as
// it was; deploy_failed says that the file is in its place and does not come up, and what
// serves; superseded, that another change came after. The end of ctx ends the wait and,
// once the file is in its place, nothing else.
func (h *Host) Deploy(ctx context.Context, u Upload) (Change, error) {
	if err := h.operable(); err != nil {
		return Change{}, err
	}
	if err := u.check(); err != nil {
		return Change{}, err
	}
	if err := h.mayTake(u.Name, u.Transient, u.Replace); err != nil { // before all of it is read
		return Change{}, err
	}
	dir, err := h.directory()
	if err != nil {
		return Change{}, whoCannotWrite(h.o.Dir, err)
	}
	path := filepath.Join(dir, u.Name)
	if err := noDirectory(path); err != nil && !u.Transient {
		return Change{}, err
	}
	b, unpin, err := h.receive(ctx, u, dir, path)
	if err != nil {
		return Change{}, err
	}
	defer unpin()
	if e := h.sole(u.Name); e == nil || e.servedSum() != b.sum { // else it has said it
		if err := h.probe(ctx, finding{name: u.Name, path: b.source, binary: &b}); err != nil {
			return Change{}, err
		}
	}
	unlock, err := h.turns.take(ctx, u.Name)
	if err != nil {
		return Change{}, err
	}
	e, was, same, err := h.put(ctx, u, path, b)
	unlock() // who comes after may have it otherwise, however long this one takes
	if err != nil {
		return Change{}, err
	}
	c, err := h.await(ctx, begun{e: e, sum: b.sum, round: e.round()})
	c.Was = was
	if same && err == nil {
		c.Result, c.Note = ResultUnchanged, "it has these bytes already; nothing was started"
	}
	return c, err
}

// round returns how many fresh starts of the element operators have asked for.
func (e *element) round() uint64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.want.round
}

func badDeployment(format string, args ...any) *conduit.Error {
	return operatorError(conduit.InvalidArgument, conduit.ReasonBadDeployment, conduit.Refused, format, args...)
}

// checkNewName looks at what a deployment is to be called.
func checkNewName(name string) error {
	switch err := address.ValidDeploymentName(name); {
	case err != nil:
		return badDeployment("no deployment can have that name: %v", err)
	case isLeftover(name) || name == sumsName || isTransientID(name):
		return badDeployment("no deployment can be called %s: scans of the deployments directory pass over such names, or it is no name; give another with --name", name)
	}
	return nil
}

// check looks at what is said of an upload.
func (u *Upload) check() error {
	if err := checkNewName(u.Name); err != nil {
		return err
	}
	switch {
	case u.Size <= 0:
		return badDeployment("%s is empty", u.Name)
	case u.Size > MaxDeploy:
		return badDeployment("%s has %d bytes, and a deployment may have %d", u.Name, u.Size, int64(MaxDeploy))
	case !isSum(u.Sum):
		return badDeployment("the SHA-256 of %s must come with it, as 64 hex digits in lower case", u.Name)
	}
	return nil
}

// isSum reports whether a text is a SHA-256 in hex.
func isSum(text string) bool {
	return len(text) == 64 && strings.Trim(text, "0123456789abcdef") == ""
}

// mayTake says whether a name is free for what an operator deploys.
func (h *Host) mayTake(name string, transient, replace bool) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	exists := func(what, mend string) error {
		return operatorError(conduit.AlreadyExists, conduit.ReasonDeploymentExists, conduit.Refused, "there is %s %s already; %s", what, name, mend)
	}
	old, there := h.transientNamed(name), false
	for _, e := range h.elements {
		there = there || e.deployment == name
	}
	switch {
	case transient && there:
		return exists("a deployment", "give the transient one another name with --name, or undeploy that one")
	case !transient && old != nil:
		return exists("a transient deployment", "undeploy it first, or give another name with --name")
	case !replace && (there || old != nil):
		return exists("a deployment", "leave --new out to replace it")
	}
	return nil
}

// transientNamed returns the transient deployment of a name. h.mu is held.
func (h *Host) transientNamed(name string) *element {
	for _, e := range h.transients {
		if e.deployment == name {
			return e
		}
	}
	return nil
}

// receive copies an upload to the store and examines it. The copy stays at least until
// unpin is called.
func (h *Host) receive(ctx context.Context, u Upload, dir, path string) (b binary, unpin func(), err error) {
	unpin = func() {}
	body := &counted{r: u.Body, left: u.Size}
	b, err = h.store.take(body, path, func(copied *os.File, sum string) error {
		switch {
		case body.left > 0:
			return badDeployment("%s ended %d bytes before the %d that were announced", u.Name, body.left, u.Size)
		case sum != u.Sum:
			return badDeployment("what came of %s has the SHA-256 %s, and %s was announced: it was changed on its way, or while it was read; deploy it again", u.Name, sum, u.Sum)
		}
		if err := checkProgram(u.Name, copied); err != nil {
			return err
		}
		if !u.Transient {
			if err := h.vouched(dir, u.Name, path, sum); err != nil {
				return err
			}
		} else if h.o.Verify == VerifyRequired {
			return &cause{refusedNoChecksum, fmt.Sprintf("host.verify is %s, and %s names no transient deployment: deploy it without --transient", h.o.Verify, sumsName)}
		}
		h.pin(sum) // before it gets its name: no sweep takes it
		unpin = func() { h.unpin(sum) }
		return nil
	})
	if err == nil {
		return b, unpin, nil
	}
	unpin()
	return b, nil, broughtIn(ctx, u.Name, body, err)
}

// broughtIn makes an operator's error of why what came from body was not copied.
func broughtIn(ctx context.Context, name string, body *counted, err error) error {
	switch {
	case err == nil:
		return nil
	case body.err != nil: // its sender's, or of the way here
		return conduit.AsError(body.err, conduit.Refused)
	case ctx.Err() != nil:
		return conduit.FromContext(ctx, conduit.Refused)
	}
	return refusedUpload(name, err)
}

// vouched says whether a binary of a name may stand in the deployments directory, as the
// next scan would.
func (h *Host) vouched(dir, name, path, sum string) error {
	if h.o.Verify == VerifyOff {
		return nil
	}
	s := readSums(dir, h.o.AllowUnsafe)
	expected, err := s.expects(h.o.Verify, name, path, false)
	switch {
	case err != nil:
		return err
	case expected != "":
		return checkSum(s.path, expected, sum, path)
	}
	return nil
}

// refusedUpload makes an operator's error of why a binary is not taken.
func refusedUpload(name string, err error) error {
	if e, ok := errors.AsType[*conduit.Error](err); ok {
		return e
	}
	if c, ok := errors.AsType[*cause](err); ok {
		e := badDeployment("%s is not deployed: %s", name, c.reason)
		e.Details = map[string]string{"kind": c.kind}
		return e
	}
	if shortage(err) || errors.Is(err, fs.ErrPermission) {
		return errNotWritable("%v; nothing was changed", err)
	}
	return operatorError(conduit.Internal, conduit.ReasonInternal, conduit.Refused, "%v", err)
}

// counted reads no more than a number of bytes, and keeps why it could not.
type counted struct {
	r    io.Reader
	left int64
	err  error
}

// Read implements io.Reader.
func (c *counted) Read(p []byte) (int, error) {
	if c.left == 0 {
		// Nothing may follow.
		n, err := c.r.Read(make([]byte, 1))
		if n == 0 && errors.Is(err, io.EOF) {
			return 0, io.EOF
		}
		if n > 0 {
			err = badDeployment("more bytes came than were announced")
		}
		if err != nil {
			c.err = err
		}
		return 0, err
	}
	n, err := c.r.Read(p[:min(int64(len(p)), c.left)])
	c.left -= int64(n)
	if err != nil && !errors.Is(err, io.EOF) {
		c.err = err
	}
	return n, err
}

// probe starts what was found, hears what it says of itself, and ends it. Nothing of its
// element's is started: it is not configured.
func (h *Host) probe(ctx context.Context, f finding) error {
	b, name := f.binary, f.name
	e := newElement(h, f)
	e.base = filepath.Join(h.priv.dir, "transient", "probe-"+rand.Text())
	defer os.RemoveAll(e.base) //nolint:errcheck // what is left goes with the process
	work := filepath.Join(e.base, "work", name, f.slot)
	if err := os.MkdirAll(work, 0o700); err != nil {
		return refusedUpload(name, err)
	}
	ctx, cancel := context.WithTimeout(ctx, e.o().StartTimeout+e.o().HealthTimeout)
	defer cancel()
	defer context.AfterFunc(h.drainCtx, cancel)()
	p, _, err := e.launch(ctx, b, work, true) // of its sandbox nothing is left beside e.base
	if err == nil {
		d, derr := p.Describe(ctx)
		if err = derr; err == nil {
			err = checkSaid(d, b)
		}
		if left := p.Kill(h.o.KillGrace); left != nil {
			e.log.Error("a plugin that was asked what it is left something behind", "error", left)
		}
	}
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil && context.Cause(ctx) == context.Canceled: //nolint:errorlint // it is that very value
		return conduit.FromContext(ctx, conduit.Refused)
	}
	if se, ok := errors.AsType[*pluginlink.StartError](err); ok {
		sent := *se // what lies at that path may be another one, which serves
		sent.Path = "what was sent for " + se.Path
		err = &sent
	}
	kind, reason, _, ours := explain(err)
	if ours {
		return operatorError(conduit.Unavailable, conduit.ReasonOverloaded, conduit.Refused, "%s could not be tried, for want of something of the host's: %s; nothing was changed", name, reason)
	}
	e2 := badDeployment("%s is not deployed, since it does not say what it is: %s", name, reason)
	e2.Details = map[string]string{"kind": kind}
	return e2
}

// put gives a binary its place, has the host look at it, and returns the element that is
// to run it. It holds the deployment's turn.
func (h *Host) put(ctx context.Context, u Upload, path string, b binary) (e *element, was string, same bool, err error) {
	if !u.Transient {
		if err := h.rescan(ctx, ""); err != nil {
			return nil, "", false, err
		}
	}
	if err := h.mayTake(u.Name, u.Transient, u.Replace); err != nil { // it may have changed while it came
		return nil, "", false, err
	}
	if u.Transient {
		return h.putTransient(u, b)
	}
	if err := h.vouched(filepath.Dir(path), u.Name, path, b.sum); err != nil {
		return nil, "", false, refusedUpload(u.Name, err)
	}
	if e = h.sole(u.Name); e != nil {
		if was = e.wantedSum(); was == b.sum && e.hasFile(path) {
			if !e.isOff() && e.servedSum() != b.sum {
				e.startAnew() // it has failed, or is about to: that is what the wait is going to tell
				return e, was, false, nil
			}
			return e, was, true, nil
		}
	}
	if err := h.place(path, b.sum); err != nil {
		return nil, was, false, err
	}
	h.log.Info("deployed by an operator", "deployment", u.Name, "sha256", b.sum, "was", was)
	e, err = h.taken(ctx, u.Name, path, b.sum)
	return e, was, false, err
}

// sole returns the element of a deployment that is one file; nil if there is none.
func (h *Host) sole(name string) *element {
	list, _ := h.find(name)
	for _, e := range list {
		if e.slot == "" {
			return e
		}
	}
	return nil
}

// noDirectory returns an error if a deployment is a directory, whose place no binary may
// take.
func noDirectory(path string) error {
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		return badDeployment("%s is a directory: undeploy it before a plain binary takes its name", path)
	}
	return nil
}

// hasFile reports whether the file of the element is still there.
func (e *element) hasFile(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().IsRegular()
}

// place gives a copy of the store a name in the deployments directory.
func (h *Host) place(path, sum string) error {
	dir, name := filepath.Split(path)
	if err := noDirectory(path); err != nil {
		return err
	}
	from, err := h.store.open(sum)
	if err != nil {
		return operatorError(conduit.Internal, conduit.ReasonInternal, conduit.Refused, "%s was not deployed: %v", name, err)
	}
	defer from.Close() //nolint:errcheck // read only
	if _, err := from.Seek(0, io.SeekStart); err != nil {
		return operatorError(conduit.Internal, conduit.ReasonInternal, conduit.Refused, "%s was not deployed: %v", name, err)
	}
	err = writeWhole(path, h.halfDeployed(rand.Text()), 0o755, func(to io.Writer) error { _, err := io.Copy(to, from); return err }, h.placing)
	if err != nil {
		return whoCannotWrite(dir, err)
	}
	return nil
}

// takenLooks is how often the host looks at a file that was put into its place until it
// has taken it.
const takenLooks = 5

// taken has the host look at a file that was just put into its place, and returns the
// element that is to run it.
func (h *Host) taken(ctx context.Context, name, path, sum string) (*element, error) {
	for n := 0; ; n++ {
		if err := h.rescan(ctx, name); err != nil {
			return nil, err
		}
		e := h.sole(name)
		if e != nil && (e.wantedSum() == sum || e.refuses()) {
			return e, nil // what it is refused for, the wait tells
		}
		if n == takenLooks {
			return nil, operatorError(conduit.Unavailable, conduit.ReasonDeployFailed, conduit.Executed,
				"%s is in its place, and the host has not taken it over yet: its disk may be full, or another program writes that file; it tries again by itself, and its log says more", path)
		}
		select {
		case <-time.After(restOf(&h.o)):
		case <-ctx.Done():
			return nil, conduit.FromContext(ctx, conduit.OutcomeUnknown)
		}
	}
}

// refuses reports whether the element's file is refused.
func (e *element) refuses() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.want.refused != nil
}

// putTransient is put for what goes with the process.
func (h *Host) putTransient(u Upload, b binary) (e *element, was string, same bool, err error) {
	h.mu.Lock()
	if !h.stopBy.IsZero() {
		h.mu.Unlock()
		return nil, "", false, errHostStops()
	}
	e = h.transientNamed(u.Name)
	fresh := e == nil
	if !fresh && e.slot != "" {
		h.mu.Unlock()
		return nil, "", false, badDeployment("%s is a directory: undeploy it before a plain binary takes its name", u.Name)
	}
	if fresh {
		id, base := h.newTransient()
		b.source = filepath.Join(h.store.dir, b.sum)
		e = newElement(h, h.withAttributes(finding{name: u.Name, path: b.source, binary: &b}))
		e.transient, e.base, e.deploymentID = id, base, address.DeploymentID{}
		e.log = h.log.With("deployment", u.Name, "transient", id)
		h.transients[id] = e
		h.begin(e)
	}
	h.mu.Unlock()
	if fresh {
		h.log.Info("transient deployment", "deployment", u.Name, "transient", e.transient, "sha256", b.sum)
		h.rebuild()
		return e, "", false, nil
	}
	was = e.wantedSum()
	switch {
	case was != b.sum:
		b.source = filepath.Join(h.store.dir, b.sum)
		h.mu.Lock()
		e.update(h.withAttributes(finding{name: u.Name, path: b.source, binary: &b}))
		h.mu.Unlock()
	case !e.isOff() && e.servedSum() != b.sum:
		e.startAnew()
	default:
		same = true
	}
	return e, was, same, nil
}

// newTransient returns an id that no transient deployment has had, and the directory of
// one of that id. h.mu is held.
func (h *Host) newTransient() (id, base string) {
	h.counted++
	id = fmt.Sprintf("T%012X", h.counted)
	return id, filepath.Join(h.priv.dir, "transient", id)
}

// Rollback puts what served before back in its place, as Deploy does with what it is
// sent: what served last, if something else is deployed, otherwise what did so before.
// Again, it so puts back what it has replaced. The errors are those of Deploy, and
// no_previous. Of a deployment that is a directory it is all of that which is put back;
// kept is what an operator's deploy or rollback has replaced.
func (h *Host) Rollback(ctx context.Context, name string) (Change, error) {
	list, unlock, err := h.lockDeployment(ctx, name)
	if err != nil {
		return Change{}, err
	}
	if e := list[0]; e.transient == "" && h.isTree(e.deployment) {
		return h.rollbackTree(ctx, e.deployment, unlock)
	}
	e, was, sum, err := h.putBack(ctx, list[0])
	unlock()
	if err != nil {
		return Change{}, err
	}
	c, err := h.await(ctx, begun{e: e, sum: sum, round: e.round()})
	c.Was = was
	return c, err
}

func errNoPrevious(format string, args ...any) error {
	return operatorError(conduit.FailedPrecondition, conduit.ReasonNoPrevious, conduit.Refused, format, args...)
}

func (h *Host) putBack(ctx context.Context, e *element) (_ *element, was, sum string, err error) {
	if e.transient != "" {
		return nil, "", "", errNoPrevious("of a transient deployment nothing is kept to go back to; deploy it from its source")
	}
	was = e.wantedSum()
	sum = h.record.of(e.deployment).back(was)
	if sum == "" {
		return nil, "", "", errNoPrevious("deployment %s has nothing to go back to: nothing else of that name has served; deploy it from its source", e.deployment)
	}
	kept, err := h.store.open(sum)
	if err != nil {
		return nil, "", "", errNoPrevious("what deployment %s could go back to is not usable: %v (SHA-256 %s); deploy it from its source", e.deployment, err, sum)
	}
	_ = kept.Close()
	dir, err := h.directory()
	if err != nil {
		return nil, "", "", whoCannotWrite(h.o.Dir, err)
	}
	path := filepath.Join(dir, e.deployment)
	if err := h.vouched(dir, e.deployment, path, sum); err != nil {
		return nil, "", "", refusedUpload(e.deployment, err)
	}
	h.pin(sum)
	defer h.unpin(sum)
	if err := h.place(path, sum); err != nil {
		return nil, "", "", err
	}
	h.log.Info("rolled back by an operator", "deployment", e.deployment, "sha256", sum, "was", was)
	e, err = h.taken(ctx, e.deployment, path, sum)
	return e, was, sum, err
}

// Undeploy removes a deployment: its file, or directory, first, so that it does not come back, then its
// processes, which drain for Options.DrainTimeout; claims that are left then are ended.
// With purge the directories of its elements' data go too. It returns when nothing runs.
// The errors are deployment_not_found, not_writable, and those of ctx, whose end ends the
// wait and, once the file is gone, not the removal; data is removed only at its end.
func (h *Host) Undeploy(ctx context.Context, name string, purge bool) (Change, error) {
	list, unlock, err := h.lockDeployment(ctx, name)
	if err != nil {
		return Change{}, err
	}
	defer unlock()
	e := list[0]
	c := changeOf(list)
	c.Was, c.Sum, c.Note = c.Sum, "", ""
	if e.transient == "" {
		if err := h.removeFile(ctx, e.deployment); err != nil {
			return Change{}, err
		}
		if now, err := h.find(e.deployment); err == nil && now[0].transient == "" {
			list = now // what a scan has found of it meanwhile goes, too
		}
	}
	h.log.Info("undeployed by an operator", "deployment", e.deployment, "purge", purge)
	for _, e := range list {
		e.remove()
	}
	for _, e := range list {
		select {
		case <-e.done:
		case <-h.stopping:
			return Change{}, errHostStops()
		case <-ctx.Done():
			err := conduit.FromContext(ctx, conduit.OutcomeUnknown)
			err.Message += "; the file is gone, and the process still drains"
			return Change{}, err
		}
	}
	c.Result, c.Pid = ResultRemoved, 0
	gone := []string{e.base}
	if e.transient == "" {
		gone = []string{filepath.Join(e.base, "work", e.deployment)}
		if err := h.record.change(e.deployment, func(r *recorded) { *r = recorded{} }); err != nil {
			c.Note = "what is remembered of it is not removed: " + err.Error()
		}
		if purge {
			gone = append(gone, filepath.Join(e.base, "data", e.deployment))
		}
	}
	for _, dir := range gone {
		if err := os.RemoveAll(dir); err != nil {
			return c, operatorError(conduit.Internal, conduit.ReasonInternal, conduit.Executed, "deployment %s is removed, but not its directory %s: %v", e.deployment, dir, rootCause(err))
		}
	}
	return c, nil
}

// removeFile takes a deployment out of the deployments directory, and has the host see it.
func (h *Host) removeFile(ctx context.Context, name string) error {
	dir, err := h.directory()
	if err != nil {
		return whoCannotWrite(h.o.Dir, err)
	}
	path := filepath.Join(dir, name)
	switch info, err := os.Lstat(path); {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return whoCannotWrite(dir, err)
	case info.IsDir():
		// Out of sight at once; then a file at a time.
		half := filepath.Join(dir, h.halfDeployed(rand.Text()))
		if err := os.Rename(path, half); err != nil {
			return whoCannotWrite(dir, err)
		}
		if err := os.RemoveAll(half); err != nil {
			h.log.Warn("what was undeployed cannot be removed; the next start tries again", "path", half, "error", err)
		}
	default:
		if err := os.Remove(path); err != nil {
			return whoCannotWrite(dir, err)
		}
	}
	if err := syncDir(dir); err != nil {
		return whoCannotWrite(dir, err)
	}
	return h.rescan(ctx, "")
}
