package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/elemental-conduit/conduit/internal/config"
	"github.com/elemental-conduit/conduit/internal/link"
	"github.com/elemental-conduit/conduit/transport"
)

const (
	socketSuffix = ".sock"
	tokenSuffix  = ".token"
	// tokenBytes of chance are in a token.
	tokenBytes = 32
	// doorLinks is how many operators there may be at once.
	doorLinks = 256
	// doorLook is how often an instance looks whether its socket is still there.
	doorLook = 2 * time.Second
	// doorGrace is what the last answers to operators have to be written.
	doorGrace = time.Second
)

// door is the management socket of an instance and the token that goes with it.
// The methods are for the one goroutine that owns the instance, but for mend.
type door struct {
	socket, token string // paths
	secret        []byte
	server        *transport.Server
	serving       sync.WaitGroup
	watch         chan struct{} // closed by shut

	mu   sync.Mutex
	l    *net.UnixListener
	is   fs.FileInfo // the socket that it has made
	said string      // what was logged of it
}

// tokenFile is the path of the token of the instance with that socket.
func tokenFile(socket string) string {
	return socket[:len(socket)-len(socketSuffix)] + tokenSuffix
}

// openDoor makes the socket and its token, in place of those that a dead instance
// of the name left. Who calls it holds the name's lock, so they are nobody's.
func openDoor(c *config.Config) (*door, error) {
	d := &door{socket: c.Socket(), watch: make(chan struct{})}
	d.token = tokenFile(d.socket)
	for path, kind := range map[string]fs.FileMode{d.socket: fs.ModeSocket, d.token: 0} {
		switch info, err := os.Lstat(path); {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			return nil, configf("run_dir: %v", err)
		case info.Mode().Type() != kind:
			return nil, configf("run_dir: %s is in the way and is not what an instance left there; move it, or give another directory with --run-dir", path)
		default:
			if err := os.Remove(path); err != nil {
				return nil, configf("run_dir: what an instance left cannot be removed: %v", err)
			}
		}
	}
	// The token first: whoever finds the socket finds it too.
	if err := d.writeToken(); err != nil {
		return nil, configf("run_dir: the token of the management socket cannot be written: %v", err)
	}
	if err := d.listen(); err != nil {
		d.shut()
		if op, ok := errors.AsType[*net.OpError](err); ok {
			err = op.Err
		}
		return nil, configf("run_dir: the management socket %s cannot be made: %v; give another directory with --run-dir", d.socket, err)
	}
	return d, nil
}

// listen makes the socket. d.mu is held, or nobody else has d.
func (d *door) listen() error {
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: d.socket, Net: "unix"})
	if err != nil {
		return err
	}
	d.l = l // it removes the socket when it is closed
	// The directory keeps others out meanwhile.
	if err := os.Chmod(d.socket, 0o600); err != nil {
		return err
	}
	d.is, err = os.Lstat(d.socket)
	return err
}

func (d *door) writeToken() error {
	chance := make([]byte, tokenBytes)
	if _, err := rand.Read(chance); err != nil {
		return err
	}
	d.secret = hex.AppendEncode(nil, chance)
	return d.saveToken()
}

// saveToken writes the token's file, which must not be there.
func (d *door) saveToken() error {
	f, err := os.OpenFile(d.token, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(append(append([]byte(nil), d.secret...), '\n'))
	return errors.Join(err, f.Close())
}

// serve lets operators in. It does not wait; failed is told if that ends before
// shut is called.
func (d *door) serve(o transport.ServerOptions, failed func(error)) {
	o.SocketToken, o.MaxLinks = d.secret, doorLinks
	d.server = transport.NewServer(o)
	d.accept(d.l, failed)
	d.serving.Go(func() {
		look := time.NewTicker(doorLook)
		defer look.Stop()
		for {
			select {
			case <-look.C:
				d.mend(o.Log, failed)
			case <-d.watch:
				return
			}
		}
	})
}

// accept has the server take the links of a listener.
func (d *door) accept(l *net.UnixListener, failed func(error)) {
	d.serving.Go(func() {
		if err := d.server.ServeSocket(l); err != nil {
			failed(err)
		}
	})
}

// mend makes the socket and the token anew that somebody has removed while the instance
// runs, as what cleans directories of temporary files may: nobody could reach it otherwise.
// What was put in their place is left alone, and told.
func (d *door) mend(log *slog.Logger, failed func(error)) {
	d.mu.Lock()
	defer d.mu.Unlock()
	select {
	case <-d.watch:
		return // they are gone on purpose
	default:
	}
	tell := func(what string, args ...any) {
		if d.said != what {
			d.said = what
			log.Error(what, args...)
		}
	}
	if _, err := os.Lstat(d.token); errors.Is(err, fs.ErrNotExist) {
		if err := d.saveToken(); err != nil {
			tell("somebody has removed the token of the management socket, and it cannot be written anew: operators do not get in", "token", d.token, "error", err)
			return
		}
		log.Warn("somebody has removed the token of the management socket; it is there again", "token", d.token)
	}
	now, err := os.Lstat(d.socket)
	switch {
	case err == nil && os.SameFile(now, d.is):
		d.said = ""
		return
	case err == nil:
		tell("somebody has put something else in the place of the management socket: operators do not get in; remove it, and the socket is made anew", "socket", d.socket)
		return
	case !errors.Is(err, fs.ErrNotExist):
		tell("the management socket cannot be looked at", "socket", d.socket, "error", err)
		return
	}
	old := d.l
	if err := d.listen(); err != nil {
		if d.l != old { // it was made, and is not as it should be
			_ = d.l.Close()
			d.l = old
		}
		tell("somebody has removed the management socket, and it cannot be made anew: operators do not get in", "socket", d.socket, "error", err)
		return
	}
	d.accept(d.l, failed)
	old.SetUnlinkOnClose(false) // that name is the new one's
	_ = old.Close()
	d.said = ""
	log.Warn("somebody has removed the management socket; it was made anew", "socket", d.socket)
}

// shut lets nobody in any more: socket and token are gone, links go on.
func (d *door) shut() {
	d.mu.Lock()
	close(d.watch)
	if d.l != nil {
		_ = d.l.Close()
	}
	d.mu.Unlock()
	d.serving.Wait()
	_ = os.Remove(d.token)
}

// close ends the links; who waited for the end of the instance learns it so. That
// ctx has ended does not hinder it.
func (d *door) close(ctx context.Context) {
	if d.server == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), doorGrace)
	defer cancel()
	_ = d.server.Drain(ctx)
	_ = d.server.Close()
}

// operator is who comes in by the door.
func operator(name string) link.Peer {
	return link.Peer{Name: operatorPeer, User: "operator:" + name, Level: operatorLevel}
}

// instancesIn returns the names of the instances that have, or had, a socket in a
// run directory.
func instancesIn(runDir string) ([]string, error) {
	entries, err := os.ReadDir(runDir)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		if e.Type() == fs.ModeSocket && filepath.Ext(e.Name()) == socketSuffix {
			names = append(names, e.Name()[:len(e.Name())-len(socketSuffix)])
		}
	}
	return names, nil
}
