package main

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"io/fs"
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
	// doorGrace is what the last answers to operators have to be written.
	doorGrace = time.Second
)

// door is the management socket of an instance and the token that goes with it.
// The methods are for the one goroutine that owns the instance.
type door struct {
	socket, token string // paths
	secret        []byte
	l             *net.UnixListener
	server        *transport.Server
	serving       sync.WaitGroup
}

// tokenFile is the path of the token of the instance with that socket.
func tokenFile(socket string) string {
	return socket[:len(socket)-len(socketSuffix)] + tokenSuffix
}

// openDoor makes the socket and its token, in place of those that a dead instance
// of the name left. Who calls it holds the name's lock, so they are nobody's.
func openDoor(c *config.Config) (*door, error) {
	d := &door{socket: c.Socket()}
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
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: d.socket, Net: "unix"})
	if err == nil {
		d.l = l // it removes the socket when it is closed
		// The directory keeps others out meanwhile.
		err = os.Chmod(d.socket, 0o600)
	}
	if err != nil {
		d.shut()
		if op, ok := errors.AsType[*net.OpError](err); ok {
			err = op.Err
		}
		return nil, configf("run_dir: the management socket %s cannot be made: %v; give another directory with --run-dir", d.socket, err)
	}
	return d, nil
}

func (d *door) writeToken() error {
	chance := make([]byte, tokenBytes)
	if _, err := rand.Read(chance); err != nil {
		return err
	}
	d.secret = hex.AppendEncode(nil, chance)
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
	d.serving.Go(func() {
		if err := d.server.ServeSocket(d.l); err != nil {
			failed(err)
		}
	})
}

// shut lets nobody in any more: socket and token are gone, links go on.
func (d *door) shut() {
	if d.l != nil {
		_ = d.l.Close()
		d.serving.Wait()
	}
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
