package host

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/hashicorp/go-hclog"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/address"
	"github.com/elemental-conduit/conduit/auth"
	"github.com/elemental-conduit/conduit/budget"
	"github.com/elemental-conduit/conduit/internal/link"
	"github.com/elemental-conduit/conduit/internal/sandbox"
)

// Principal is on whose behalf a call runs.
type Principal struct {
	User  string
	Level conduit.Level
	// Session is the session that the call runs as, for the calls that an element
	// makes in it and that go on to other instances: those ask who it is themselves.
	// nil = there is none. It is kept while the call lives, reaches no plugin, and
	// shows nothing when it is printed.
	Session *auth.Secret
}

// Origin is the element that a call came from, and on whose behalf it made it.
type Origin struct {
	Deployment, Element string
	Principal           Principal
	// Chain names the elements that the call came through, the origin last.
	Chain []string
	// Peer is the instance that the call's root came from; empty for a client.
	Peer string
}

// MethodObserver hears of the calls of one method: Begin when one is passed on, whose
// result is End's, and Refuse for one that was not started. Observer makes one of each
// method that is there, and hears itself of what was refused before its method was
// known, by the names as the caller wrote them. All methods may be called
// concurrently and must not block. They are aliases, so that who counts need not
// import this package.
type (
	MethodObserver = interface {
		Begin() time.Duration
		End(begun time.Duration, code conduit.Code, outcome conduit.Outcome)
		Refuse(code conduit.Code, outcome conduit.Outcome)
	}
	Observer = interface {
		Method(deployment, service, method string) MethodObserver
		Refused(deployment, service, method string, code conduit.Code, outcome conduit.Outcome)
	}
)

// Options say how a host works. Zero numbers are the defaults.
type Options struct {
	// Dir is the deployments directory. It must exist.
	Dir string
	// Private is this instance's own directory: copies of binaries, working and
	// data directories, the lock. It is made if missing.
	Private string
	// SocketDir takes the plugins' sockets; it must be short and this host's
	// alone. Empty = the first of some that is short enough.
	SocketDir string
	// Instance is who this host is.
	Instance address.InstanceID
	// Log takes the host's log and the elements'.
	Log hclog.Logger

	// Builtin answers calls to the deployment "conduit"; nil = there is none.
	Builtin link.Handler
	// Observer hears of every call to an element; nil = nobody does.
	Observer Observer
	// Calls hears of every call to an element once it is over; nil = nobody does. It must
	// not wait.
	Calls func(CallRecord)
	// FromPlugin takes the calls that elements make, but for those to the
	// deployment "conduit"; nil = they are dispatched within this host. It runs
	// on the plugin link's reader and must not block.
	FromPlugin func(from Origin, in *link.Incoming)

	// Budget is what calls and claims are counted on; nil = one that never ends.
	Budget *budget.Budget

	// AllowUnsafe lets binaries and directories be used that others can write.
	AllowUnsafe bool
	// Verify says which binaries must have the checksum that the file SHA256SUMS in Dir
	// gives them; empty = VerifyOff.
	Verify Verify
	// Sandbox says how far plugins are confined; empty = SandboxOff. Any other needs
	// [SandboxEntry]. A deployment may ask for another, but for no less than what is
	// required.
	Sandbox Sandbox
	// Env is what every plugin gets beside the short list that is inherited, as
	// NAME=value.
	Env []string

	// Attributes are what all elements are told: they win over an element's defaults, and
	// a deployment's own over them. See SetAttributes.
	Attributes Attributes
	// Of what the elements of a deployment write, so many old files are kept beside the
	// present one, each of about that many bytes.
	LogSize  int64 // 10 MiB
	LogFiles int   // 3

	ScanInterval   time.Duration // 30s: the whole directory is read so often, and when events hint at a change
	StartTimeout   time.Duration // 10s: exec to handshake
	ReadyTimeout   time.Duration // 60s: handshake to healthy
	HealthInterval time.Duration // 5s
	HealthTimeout  time.Duration // 2s
	StopTimeout    time.Duration // 5s: for the element's own Stop, beyond the drain
	KillGrace      time.Duration // 2s: from the request to leave to SIGKILL
	DrainTimeout   time.Duration // 30s: for calls, and at the end of an element or the host for claims, too
	RestartMin     time.Duration // 500ms: first pause after the immediate restart
	RestartMax     time.Duration // 60s
	StableAfter    time.Duration // 30s: a process that lived so long did not fail quickly
	CrashLoopAfter int           // 5 quick failures in a row
	MaxStarts      int           // 4 processes starting at once
	Concurrency    int           // 1024 calls an element

	// ReleaseClaims ends the claims of a process that was replaced after DrainTimeout, as
	// its calls; otherwise they are waited for without a limit.
	ReleaseClaims bool

	MaxMessage  int64        // bytes of the largest message; link's default
	Memory      *link.Memory // of all links; nil = one for the host's own
	MemoryTotal int64        // bytes that a plugin may use for its links; 0 = the plugin's default
	LinkMemory  int64
	MaxCalls    uint32

	// Reattach names deployments whose element is served by a process that is not this
	// host's: one that `<binary> debug` has started, at the socket that is the value. For
	// development only: of those neither checksum nor sandbox, environment, limits and
	// health are looked after, which the log says at each start. What is named has to be
	// deployed, as NAME or, of a deployment with several elements, NAME/ELEMENT; else Run
	// fails.
	Reattach map[string]string

	kernel func() sandbox.Kernel // tests have others

	// OnChange is told of each change of what the host has to tell of its deployments;
	// nil = nobody is. It must not block, nor call the host.
	OnChange func()
}

func (o *Options) setDefaults() error {
	if o.Dir == "" || o.Private == "" {
		return errors.New("host: Options.Dir and Options.Private must be set")
	}
	switch o.Verify {
	case "":
		o.Verify = VerifyOff
	case VerifyOff, VerifyChecksum, VerifyRequired:
	default: // a slip must not turn it off
		return fmt.Errorf("host: Options.Verify is %q; it may be %s, %s or %s", o.Verify, VerifyOff, VerifyChecksum, VerifyRequired)
	}
	switch {
	case o.Sandbox == "":
		o.Sandbox = SandboxOff
	case !o.Sandbox.Valid():
		return fmt.Errorf("host: Options.Sandbox is %q; it may be %s, %s or %s", o.Sandbox, SandboxOff, SandboxBestEffort, SandboxRequired)
	case o.Sandbox != SandboxOff && !sandbox.Prepared():
		return errors.New("host: Options.Sandbox needs host.SandboxEntry as the first statement of main: this program, started again, could not confine itself")
	}
	if o.kernel == nil {
		o.kernel = sandbox.Available
	}
	if err := o.Attributes.Check(); err != nil {
		return fmt.Errorf("host: Options.Attributes: %w", err)
	}
	if err := checkReattach(o.Reattach); err != nil {
		return err
	}
	if o.Log == nil {
		o.Log = hclog.NewNullLogger()
	}
	for _, d := range []struct {
		v *time.Duration
		d time.Duration
	}{
		{&o.ScanInterval, 30 * time.Second},
		{&o.StartTimeout, 10 * time.Second},
		{&o.ReadyTimeout, 60 * time.Second},
		{&o.HealthInterval, 5 * time.Second},
		{&o.HealthTimeout, 2 * time.Second},
		{&o.StopTimeout, 5 * time.Second},
		{&o.KillGrace, 2 * time.Second},
		{&o.DrainTimeout, 30 * time.Second},
		{&o.RestartMin, 500 * time.Millisecond},
		{&o.RestartMax, 60 * time.Second},
		{&o.StableAfter, 30 * time.Second},
	} {
		if *d.v == 0 {
			*d.v = d.d
		}
	}
	for _, n := range []struct {
		v *int
		d int
	}{{&o.CrashLoopAfter, 5}, {&o.MaxStarts, 4}, {&o.Concurrency, 1024}, {&o.LogFiles, 3}} {
		if *n.v == 0 {
			*n.v = n.d
		}
	}
	if o.Budget == nil {
		o.Budget = budget.New(math.MaxInt64)
	}
	if o.LogSize == 0 {
		o.LogSize = 10 << 20
	}
	if o.MaxMessage == 0 {
		o.MaxMessage = link.DefaultMaxMessage
	}
	return nil
}
