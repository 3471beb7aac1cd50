package main

import (
	"io"
	"os"
	"strings"

	"github.com/elemental-conduit/conduit/internal/config"
)

// maxSession is how much of a file is read for a secret, in bytes.
const maxSession = 4096

// sessionSecret finds the session secret: the flag, else the environment. No
// message of it says what the secret is.
func (a *app) sessionSecret() (string, error) {
	source := a.session
	if source == "" {
		for _, entry := range a.environ {
			if v, ok := strings.CutPrefix(entry, config.SessionEnv+"="); ok {
				source = v
			}
		}
		// The environment takes the same three forms, but never warns: it is the
		// better place.
		return a.readSession(source, config.SessionEnv)
	}
	if info, err := os.Stat(source); err == nil && info.Mode().IsRegular() && source != "-" {
		return "", usagef("--session %s: that is a file; write --session @%s for the secret that is in it", source, source)
	}
	if source != "-" && !strings.HasPrefix(source, "@") && isTerminal(a.stderr) {
		a.warn("the secret in --session stays in the shell's history and shows in the process list; use --session @FILE or %s", config.SessionEnv)
	}
	return a.readSession(source, "--session")
}

func (a *app) readSession(source, where string) (string, error) {
	var in io.Reader
	switch {
	case source == "":
		return "", nil
	case source == "-":
		in = a.stdin
	case strings.HasPrefix(source, "@"):
		f, err := os.Open(source[1:])
		if err != nil {
			return "", usagef("the file of %s cannot be opened: %v", where, err)
		}
		defer f.Close() //nolint:errcheck // nothing was written
		in = f
	default:
		in = strings.NewReader(source)
	}
	text, err := io.ReadAll(io.LimitReader(in, maxSession))
	if err != nil {
		return "", usagef("the secret of %s cannot be read: %v", where, err)
	}
	secret := strings.TrimSpace(string(text))
	switch {
	case secret == "":
		return "", usagef("the secret of %s is empty", where)
	case strings.ContainsFunc(secret, func(r rune) bool { return r <= ' ' || r > '~' }):
		return "", usagef("the secret of %s is more than one word, or has characters that no secret has", where)
	}
	return secret, nil
}
