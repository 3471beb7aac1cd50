package main

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"io"
	"mime"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/address"
	"github.com/elemental-conduit/conduit/internal/config"
	conduitv1 "github.com/elemental-conduit/conduit/proto/conduit/v1"
)

// argument is what the method of a call is given. What is sent of it may depend on
// whether the method takes bytes, which only its host knows.
type argument struct {
	given bool
	data  []byte
	where string // for messages
	// inline: it stands on the command line, so bytes are written in base64.
	inline bool
	// asked: the method must be known before it can be sent.
	asked bool
	// notJSON is why it can be no argument but bytes.
	notJSON error
}

// invocation reads the method and the argument.
func (a *app) invocation(f *callFlags, args []string) (*conduit.Invocation, argument, error) {
	in := &conduit.Invocation{
		Method:      args[0],
		ContentType: f.contentType,
		Last:        true,
		Units:       f.units,
		// What shape the method has only its host knows. As a stream a call gets no
		// deadline that nobody asked for, and ends as soon as the method does.
		Streaming: true,
	}
	if !f.raw {
		in.Accept = conduit.ContentJSON
	}
	if err := checkMethod(in.Method); err != nil {
		return in, argument{}, err
	}
	if err := checkContentType(in.ContentType); err != nil || len(args) < 2 {
		return in, argument{}, err
	}
	arg, err := a.argument(args[1])
	if err != nil || f.typed && f.contentType != conduit.ContentJSON {
		return in, arg, err
	}
	err = checkJSON(bytes.TrimSpace(arg.data), arg.where)
	switch {
	case f.typed || arg.inline:
		if err != nil {
			return nil, arg, err
		}
		arg.asked = !f.typed && bytes.TrimSpace(arg.data)[0] == '"'
	default:
		arg.asked = true
		if err != nil {
			arg.notJSON = usagef("%s; if the method takes bytes, add --content-type %s", conduit.AsError(err, conduit.NotSent).Message, conduit.ContentBytes)
		}
	}
	if !arg.asked {
		arg.data = bytes.TrimSpace(arg.data)
	}
	return in, arg, nil
}

func checkMethod(name string) error {
	if name == "" || strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return usagef("%q is not the name of a method", name)
	}
	return nil
}

// maxContentType is how many bytes a content type may take on the wire.
const maxContentType = 1024

// checkContentType refuses what is no content type, or longer than a link takes.
func checkContentType(text string) error {
	if len(text) > maxContentType {
		return usagef("--content-type: %q has %d bytes; a content type has at most %d", shorten(text), len(text), maxContentType)
	}
	bare, _, err := mime.ParseMediaType(text)
	switch {
	case err != nil:
		return usagef("--content-type: %q is not a content type (%v); write one such as %s", text, err, conduit.ContentBytes)
	case !strings.Contains(bare, "/"):
		return usagef("--content-type: %q is not a content type, for it has no /; write one such as %s", text, conduit.ContentBytes)
	}
	return nil
}

func (a *app) argument(text string) (argument, error) {
	arg := argument{given: true}
	var err error
	switch {
	case text == "-" && a.session == "-":
		return arg, usagef("the argument and --session cannot both come from standard input")
	case text == "-":
		arg.where = "standard input"
		arg.data, err = a.readArgument(a.stdin, arg.where, 0)
	case strings.HasPrefix(text, "@"):
		arg.where = text[1:]
		arg.data, err = a.readArgumentFile(text[1:])
	default:
		arg.data, arg.where, arg.inline = []byte(text), "the argument", true
	}
	return arg, err
}

// argumentKey is the key that bounds an argument: the largest message.
const argumentKey = "cluster.max_payload"

func (a *app) readArgumentFile(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, usagef("the argument cannot be read: %v", err)
	}
	defer f.Close() //nolint:errcheck // nothing was written
	var size int64
	if info, err := f.Stat(); err == nil && info.Mode().IsRegular() {
		size = info.Size()
	}
	return a.readArgument(f, path, size)
}

// readArgument reads at most one byte more than a message may have: a device or a
// pipe may never end. size is what is known of it beforehand, else 0. What the peer
// takes may be less, and is looked at by the link before anything is sent.
func (a *app) readArgument(in io.Reader, where string, size int64) ([]byte, error) {
	c, err := config.Load(config.Sources{File: a.configFile, Environ: a.environ, Flags: &a.keys, Machine: config.ThisMachine(false)})
	if err := only(err, argumentKey); err != nil {
		return nil, err
	}
	most := c.Size(argumentKey)
	if size > most {
		return nil, errArgumentTooLarge(where, strconv.FormatInt(size, 10), most)
	}
	data, err := io.ReadAll(io.LimitReader(in, most+1))
	if err != nil {
		return nil, usagef("the argument cannot be read from %s: %v", where, err)
	}
	if int64(len(data)) > most {
		return nil, errArgumentTooLarge(where, "more than "+strconv.FormatInt(most, 10), most)
	}
	return data, nil
}

// errArgumentTooLarge has the reason that the link gives for a message above the
// peer's cap.
func errArgumentTooLarge(where, size string, most int64) error {
	e := conduit.Errorf(conduit.ResourceExhausted, conduit.ReasonPayloadTooLarge, conduit.NotSent,
		"the argument is too large: %s has %s bytes, and a message has at most %d here; if the peer takes larger ones, raise %s here, too (--cluster-max-payload, at most 1GiB)",
		where, size, most, argumentKey)
	e.Details = map[string]string{"limit": strconv.FormatInt(most, 10)}
	if _, err := strconv.ParseInt(size, 10, 64); err == nil {
		e.Details["size"] = size
	}
	return e
}

// fill puts the argument into the call. takesBytes is asked only if it matters; it
// says false also of a method that is not known.
func (arg argument) fill(in *conduit.Invocation, takesBytes func() bool) error {
	if !arg.given {
		return nil
	}
	in.Request, in.HasRequest = arg.data, true
	if !arg.asked {
		return nil
	}
	if !takesBytes() {
		in.Request = bytes.TrimSpace(arg.data)
		return arg.notJSON
	}
	in.ContentType = conduit.ContentBytes
	if !arg.inline {
		return nil
	}
	var text string
	if err := json.Unmarshal(arg.data, &text); err != nil {
		return usagef("%s is no text: %v", arg.where, err)
	}
	data, err := base64.StdEncoding.Strict().DecodeString(text)
	if err != nil {
		return usagef("the method %s takes bytes, which are written as they are printed, as a JSON string in base64, and %s is not that: %v; "+
			"bytes as they are come from a file (@FILE) or standard input (-), and with --content-type %s the argument is sent as it stands",
			in.Method, arg.where, err, conduit.ContentBytes)
	}
	in.Request = data
	return nil
}

// takesBytes asks the other end of a connection whether a method takes bytes and
// nothing else. Where nothing is said of the method, it does not.
func (a *app) takesBytes(ctx context.Context, c connection, addr address.Address, method string) bool {
	if isBuiltinDeployment(addr.DeploymentText()) {
		return false
	}
	return anyTakesBytes(a.infosFor(ctx, c, addr), addr, method)
}

func infosOf(peers []*conduitv1.PeerInfo) []*conduitv1.InstanceInfo {
	infos := make([]*conduitv1.InstanceInfo, len(peers))
	for i, p := range peers {
		infos[i] = p.GetInfo()
	}
	return infos
}

// anyTakesBytes looks for a method in what instances say of themselves; the first
// that has it decides.
func anyTakesBytes(infos []*conduitv1.InstanceInfo, addr address.Address, method string) bool {
	id, anyInstance := addr.Instance()
	for _, info := range infos {
		if !anyInstance && info.GetInstance() != id.String() {
			continue
		}
		s, err := findService(info, addr)
		if err != nil {
			continue
		}
		if i := slices.IndexFunc(s.Methods, func(m methodRow) bool { return m.Method == method }); i >= 0 {
			m := s.Methods[i]
			// Its answers may be of another type, as those of an upload of bytes often are.
			return slices.Contains(m.ContentTypes, conduit.ContentBytes) && (len(m.ContentTypes) == 1 || m.Request == "bytes")
		}
	}
	return false
}
