//go:build full && linux

package integration

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// wire is a network of its own: network namespaces, each with one interface, and what
// carries packets between them. The interfaces are TUN devices whose other end is this
// process, so that it decides of each packet when it arrives, and whether it does: the
// kernels of many machines cannot (CONFIG_NET_SCH_NETEM). What sends and receives is the
// kernel's TCP. All of it ends with the test: a namespace has no name, and lives only as
// long as somebody holds it.
type wire struct {
	t *testing.T
	// delay is what a packet takes from one end to the other; rate is how many bytes a
	// second one end may send, 0 = any number. What comes faster is kept, however much.
	delay time.Duration
	rate  float64

	closing chan struct{} // closed when the test is over

	mu    sync.Mutex
	ends  map[string]*end // by their addresses
	drops func(from, to string) bool
	lost  int // packets that were dropped
}

// end is one namespace.
type end struct {
	w       *wire
	address string
	ns      *os.File
	tun     *os.File
	queue   chan parcel // what is on its way to here
	free    time.Time   // when all that it has sent until now will have left; of its reader
}

// parcel is a packet and when it arrives.
type parcel struct {
	at time.Time
	b  []byte
}

// mtu is large, so that this process has less to do.
const mtu = 16000

// newWire makes a wire with ends of the addresses 10.9.0.1 and so on.
func newWire(t *testing.T, ends int, delay time.Duration, rate float64) *wire {
	t.Helper()
	if why := noNamespaces(); why != nil {
		if os.Getenv("CONDUIT_TEST_ALL") != "" {
			t.Fatal(why)
		}
		t.Skip(why)
	}
	w := &wire{t: t, delay: delay, rate: rate, ends: map[string]*end{}, closing: make(chan struct{})}
	var all sync.WaitGroup
	t.Cleanup(func() {
		close(w.closing)
		for _, e := range w.ends {
			_ = e.tun.Close()
		}
		all.Wait()
		for _, e := range w.ends {
			_ = e.ns.Close()
		}
	})
	for k := range ends {
		e := &end{w: w, address: fmt.Sprintf("10.9.0.%d", k+1), queue: make(chan parcel, 1<<16)}
		if err := e.open(); err != nil {
			t.Fatal(err)
		}
		w.ends[e.address] = e
	}
	for _, e := range w.ends {
		all.Go(e.deliver)
		all.Go(e.read)
	}
	return w
}

// noNamespaces says why this process cannot make networks; nil = it can.
func noNamespaces() error {
	if os.Getuid() != 0 {
		return errors.New("network namespaces are made by root: run it as root, or with unshare -rn")
	}
	if _, err := exec.LookPath("ip"); err != nil {
		return fmt.Errorf("%w: apt-get install iproute2", err)
	}
	if _, err := os.Stat("/dev/net/tun"); err != nil {
		return fmt.Errorf("the kernel has no TUN devices: %w", err)
	}
	return nil
}

// open makes the namespace and its interface.
func (e *end) open() error {
	made := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		made <- func() (err error) {
			if err = unix.Unshare(unix.CLONE_NEWNET); err != nil {
				return fmt.Errorf("no network namespace: %w", err)
			}
			if e.ns, err = os.Open(fmt.Sprintf("/proc/self/task/%d/ns/net", unix.Gettid())); err != nil {
				return err
			}
			if e.tun, err = openTUN("wire"); err != nil {
				return fmt.Errorf("no TUN device: %w", err)
			}
			for _, args := range [][]string{
				{"link", "set", "lo", "up"},
				{"link", "set", "wire", "mtu", strconv.Itoa(mtu)},
				{"address", "add", e.address + "/24", "dev", "wire"},
				{"link", "set", "wire", "up"},
			} {
				if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil { //nolint:gosec // as above
					return fmt.Errorf("ip %v: %w: %s", args, err, out)
				}
			}
			return nil
		}()
	}()
	return <-made
}

// openTUN makes a TUN device in the thread's namespace. Reads and writes of the file are
// whole packets.
func openTUN(name string) (*os.File, error) {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	request, err := unix.NewIfreq(name)
	if err == nil {
		request.SetUint16(unix.IFF_TUN | unix.IFF_NO_PI)
		err = unix.IoctlIfreq(fd, unix.TUNSETIFF, request)
	}
	if err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	return os.NewFile(uintptr(fd), name), nil //nolint:gosec // a descriptor
}

// read takes what the end sends.
func (e *end) read() {
	b := make([]byte, mtu)
	for {
		n, err := e.tun.Read(b)
		if err != nil {
			return // closed
		}
		if n < 20 || b[0]>>4 != 4 { // IPv6 looks for its neighbours
			continue
		}
		to := net.IP(b[16:20]).String()
		now := time.Now()
		if e.free.Before(now) {
			e.free = now
		}
		if e.w.rate > 0 {
			e.free = e.free.Add(time.Duration(float64(n) / e.w.rate * float64(time.Second)))
		}
		e.w.pass(e, to, parcel{e.free.Add(e.w.delay), append([]byte(nil), b[:n]...)})
	}
}

// pass puts a packet on its way.
func (w *wire) pass(from *end, to string, p parcel) {
	w.mu.Lock()
	defer w.mu.Unlock()
	e := w.ends[to]
	if e == nil || w.drops != nil && w.drops(from.address, to) {
		w.lost++
		return
	}
	select {
	case e.queue <- p:
	default:
		w.lost++
	}
}

// deliver gives the end what arrives.
func (e *end) deliver() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		var p parcel
		select {
		case p = <-e.queue:
		case <-e.w.closing:
			return
		}
		if wait := time.Until(p.at); wait > 0 {
			timer.Reset(wait)
			select {
			case <-timer.C:
			case <-e.w.closing:
				return
			}
		}
		_, _ = e.tun.Write(p.b) // an interface that is gone has nobody who waits
	}
}

// drop loses packets, without a word to whom they come from, as long as which says so:
// nil = none.
func (w *wire) drop(which func(from, to string) bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.drops = which
}

// dropped returns how many packets were lost.
func (w *wire) dropped() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.lost
}

// at returns the end of an address.
func (w *wire) at(k int) *end { return w.ends[fmt.Sprintf("10.9.0.%d", k)] }

// inside runs something in the namespace: sockets that it makes, and processes that it
// starts, stay there.
func (e *end) inside(fn func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()                                                // as in open
		if err := unix.Setns(int(e.ns.Fd()), unix.CLONE_NEWNET); err != nil { //nolint:gosec // a descriptor
			done <- err
			return
		}
		done <- fn()
	}()
	return <-done
}

// dial is net.Dialer's DialContext from within; addresses are numbers.
func (e *end) dial(ctx context.Context, network, address string) (conn net.Conn, err error) {
	err = e.inside(func() (err error) {
		conn, err = new(net.Dialer).DialContext(ctx, network, address)
		return err
	})
	return conn, err
}

// listen listens within, on a port that is free.
func (e *end) listen() net.Listener {
	e.w.t.Helper()
	var l net.Listener
	if err := e.inside(func() (err error) {
		l, err = net.Listen("tcp", e.address+":0")
		return err
	}); err != nil {
		e.w.t.Fatal(err)
	}
	return l
}
