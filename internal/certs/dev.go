package certs

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// The files of a development authority, in its directory.
const (
	DevCA    = "ca.pem"
	devCAKey = "ca-key.pem"
	DevCert  = "cert.pem"
	DevKey   = "key.pem"
)

// devCALife is how long a development authority lasts.
const devCALife = 10 * 365 * 24 * time.Hour

// Dev says what a development certificate is for.
type Dev struct {
	// Dir is where the files are, made if it is missing.
	Dir string
	// Hosts are names and IP addresses that the certificate is good for.
	Hosts []string
	// Life is how long it lasts.
	Life time.Duration
	// Now is the clock.
	Now time.Time
}

// Make writes a certificate of the directory's own authority and its key, in place of
// those that are there, and makes the authority if there is none: it outlives the
// certificates, so that who trusts it need not be told of new ones. The keys are for
// the owner's eyes (0600). newCA says whether the authority is new.
func (d Dev) Make() (newCA bool, _ error) {
	if err := os.MkdirAll(d.Dir, 0o700); err != nil {
		return false, err
	}
	ca, caKey, err := d.authority()
	if errors.Is(err, fs.ErrNotExist) {
		newCA = true
		ca, caKey, err = d.newAuthority()
	}
	if err != nil {
		return false, err
	}
	t, err := template(d.Now, d.Now.Add(d.Life), "conduit development")
	if err != nil {
		return false, err
	}
	if t.NotAfter.After(ca.NotAfter) {
		return false, fmt.Errorf("the authority in %s ends on %s, before the certificate would: remove the directory to begin anew, or ask for less", d.Dir, ca.NotAfter.Format(time.DateOnly))
	}
	t.KeyUsage = x509.KeyUsageDigitalSignature
	t.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}
	for _, h := range d.Hosts {
		if ip := net.ParseIP(h); ip != nil {
			t.IPAddresses = append(t.IPAddresses, ip)
		} else {
			t.DNSNames = append(t.DNSNames, h)
		}
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return false, err
	}
	der, err := x509.CreateCertificate(rand.Reader, t, ca, key.Public(), caKey)
	if err != nil {
		return false, err
	}
	return newCA, d.write(der, DevCert, key, DevKey)
}

// authority reads the authority; fs.ErrNotExist = there is none.
func (d Dev) authority() (*x509.Certificate, *ecdsa.PrivateKey, error) {
	text, err := read(filepath.Join(d.Dir, DevCA))
	if err != nil {
		return nil, nil, err
	}
	keyText, err := read(filepath.Join(d.Dir, devCAKey))
	if err != nil {
		return nil, nil, fmt.Errorf("the authority in %s has lost its key: remove the directory to begin anew (%s)", d.Dir, err.Error())
	}
	broken := fmt.Errorf("the authority in %s cannot be read: remove the directory to begin anew", d.Dir)
	c, k := firstBlock(text, "CERTIFICATE"), firstBlock(keyText, "PRIVATE KEY")
	if c == nil || k == nil {
		return nil, nil, broken
	}
	ca, err := x509.ParseCertificate(c)
	if err != nil {
		return nil, nil, broken
	}
	parsed, err := x509.ParsePKCS8PrivateKey(k)
	if err != nil {
		return nil, nil, broken
	}
	key, ok := parsed.(*ecdsa.PrivateKey)
	if !ok || !key.PublicKey.Equal(ca.PublicKey) {
		return nil, nil, broken
	}
	return ca, key, nil
}

func firstBlock(text []byte, kind string) []byte {
	if b, _ := pem.Decode(text); b != nil && b.Type == kind {
		return b.Bytes
	}
	return nil
}

func (d Dev) newAuthority() (*x509.Certificate, *ecdsa.PrivateKey, error) {
	t, err := template(d.Now, d.Now.Add(devCALife), "conduit development authority")
	if err != nil {
		return nil, nil, err
	}
	t.IsCA, t.BasicConstraintsValid, t.MaxPathLenZero = true, true, true
	t.KeyUsage = x509.KeyUsageCertSign
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, err
	}
	der, err := x509.CreateCertificate(rand.Reader, t, t, key.Public(), key)
	if err != nil {
		return nil, nil, err
	}
	ca, err := x509.ParseCertificate(der)
	if err != nil {
		return nil, nil, err
	}
	return ca, key, d.write(der, DevCA, key, devCAKey)
}

func template(from, to time.Time, name string) (*x509.Certificate, error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, err
	}
	return &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: name},
		NotBefore: from.Add(-time.Hour), NotAfter: to, // other machines' clocks are a little late
	}, nil
}

// write writes a certificate and its key, the key first: an instance that reads the
// files meanwhile finds two that do not match, and keeps what it had.
func (d Dev) write(der []byte, certName string, key *ecdsa.PrivateKey, keyName string) error {
	k, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	if err := d.put(keyName, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: k}), 0o600); err != nil {
		return err
	}
	return d.put(certName, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o644)
}

// put writes a file whole or not at all.
func (d Dev) put(name string, b []byte, mode fs.FileMode) error {
	f, err := os.CreateTemp(d.Dir, "."+name+"-*")
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	err = errors.Join(err, f.Chmod(mode), f.Sync(), f.Close())
	if err == nil {
		err = os.Rename(f.Name(), filepath.Join(d.Dir, name))
	}
	if err != nil {
		_ = os.Remove(f.Name()) // the error that matters is the first
	}
	return err
}
