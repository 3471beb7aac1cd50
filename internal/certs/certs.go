// Package certs keeps what TLS needs of files: a certificate chain with its key, and
// authorities. Files are read again without dropping connections: those that are open
// keep what they were made with, later ones have what the files say now.
package certs

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"
)

// maxFile bounds what is read of a file, in bytes.
const maxFile = 1 << 20

// Files name PEM files; an empty name is none.
type Files struct {
	// Cert and Key are the chain that is shown and its private key: both or neither.
	Cert, Key string
	// ClientCA are the authorities of the certificates that dialers must show; without
	// it none is asked for.
	ClientCA string
	// CA are the authorities of those who are dialled, in place of the system's.
	CA string
}

// Keeper holds what files said when they were last read and made sense. All methods
// may be called concurrently.
type Keeper struct {
	files Files
	now   atomic.Pointer[loaded]
}

// loaded is immutable.
type loaded struct {
	bytes          [4][]byte // of the files, to know them again
	chain          *tls.Certificate
	clientCA, root *x509.CertPool
}

// Open reads the files. The error says which is wrong and what to do; it holds
// nothing of a key.
func Open(f Files) (*Keeper, error) {
	k := &Keeper{files: f}
	l, err := load(f)
	if err != nil {
		return nil, err
	}
	k.now.Store(l)
	return k, nil
}

// Serves reports whether there is a certificate to serve with.
func (k *Keeper) Serves() bool { return k.files.Cert != "" }

// Reload reads the files again. An error leaves everything as it was; it need not be
// the files' fault, since one of them may be half written. changed: there is something
// new.
func (k *Keeper) Reload() (changed bool, _ error) {
	was := k.now.Load()
	l, err := load(k.files)
	if err != nil {
		return false, err
	}
	for i := range l.bytes {
		if !bytes.Equal(l.bytes[i], was.bytes[i]) {
			k.now.Store(l)
			return true, nil
		}
	}
	return false, nil
}

// Expires returns when the certificate that is shown ends; zero = there is none.
func (k *Keeper) Expires() time.Time {
	if c := k.now.Load().chain; c != nil {
		return c.Leaf.NotAfter
	}
	return time.Time{}
}

// Server returns the configuration of a listener, which asks the Keeper anew for each
// connection: TLS 1.2 at least and HTTP/1.1, since HTTP/2 carries no upgrade. Sessions
// are not resumed: a resumed one would go by the authorities of the first.
func (k *Keeper) Server() *tls.Config {
	return &tls.Config{
		MinVersion: tls.VersionTLS12,
		NextProtos: []string{"http/1.1"},
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			l := k.now.Load()
			if l.chain == nil {
				return nil, errors.New("there is no certificate")
			}
			c := &tls.Config{
				MinVersion:             tls.VersionTLS12,
				NextProtos:             []string{"http/1.1"},
				Certificates:           []tls.Certificate{*l.chain},
				SessionTicketsDisabled: true,
			}
			if l.clientCA != nil {
				c.ClientAuth, c.ClientCAs = tls.RequireAndVerifyClientCert, l.clientCA
			}
			return c, nil
		},
	}
}

// Client returns the configuration for dialling, as it is now: it shows the
// certificate, if there is one, to who asks for it.
func (k *Keeper) Client() *tls.Config {
	l := k.now.Load()
	c := &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: l.root}
	if l.chain != nil {
		c.Certificates = []tls.Certificate{*l.chain}
	}
	return c
}

func load(f Files) (*loaded, error) {
	l := &loaded{}
	for i, name := range []string{f.Cert, f.Key, f.ClientCA, f.CA} {
		if name == "" {
			continue
		}
		var err error
		if l.bytes[i], err = read(name); err != nil {
			return nil, err
		}
	}
	switch {
	case f.Cert == "" && f.Key == "":
	case f.Key == "":
		return nil, fmt.Errorf("%s is a certificate without a key: name its key, too", f.Cert)
	case f.Cert == "":
		return nil, fmt.Errorf("%s is a key without a certificate: name its certificate, too", f.Key)
	default:
		chain, err := tls.X509KeyPair(l.bytes[0], l.bytes[1])
		if err != nil {
			return nil, fmt.Errorf("%s and %s are no certificate and its key: %w", f.Cert, f.Key, err)
		}
		l.chain = &chain
	}
	var err error
	if l.clientCA, err = authorities(f.ClientCA, l.bytes[2]); err != nil {
		return nil, err
	}
	l.root, err = authorities(f.CA, l.bytes[3])
	return l, err
}

func read(name string) ([]byte, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // nothing was written
	b := make([]byte, maxFile+1)
	n := 0
	for n < len(b) {
		m, err := f.Read(b[n:])
		if n += m; m == 0 || err != nil {
			break // a directory, or the end: what was read is judged
		}
	}
	switch {
	case n > maxFile:
		return nil, fmt.Errorf("%s has more than %d bytes: it is no PEM file of certificates", name, maxFile)
	case n == 0:
		return nil, fmt.Errorf("%s is empty, or no file", name)
	}
	return b[:n], nil
}

// authorities reads certificates, all of which must be good: one that is left out in
// silence is missed much later.
func authorities(name string, text []byte) (*x509.CertPool, error) {
	if name == "" {
		return nil, nil //nolint:nilnil // none was named: the pool of nobody in particular
	}
	pool := x509.NewCertPool()
	n := 0
	for {
		var block *pem.Block
		if block, text = pem.Decode(text); block == nil {
			break
		}
		if block.Type != "CERTIFICATE" {
			return nil, fmt.Errorf("%s has a %s: it takes certificates only", name, block.Type)
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("%s: certificate %d: %w", name, n+1, err)
		}
		pool.AddCert(c)
		n++
	}
	if n == 0 || len(bytes.TrimSpace(text)) > 0 {
		return nil, fmt.Errorf("%s is no PEM file of certificates", name)
	}
	return pool, nil
}
