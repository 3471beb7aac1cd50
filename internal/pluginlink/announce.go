package pluginlink

import (
	"bytes"
	"fmt"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

// Bounds of what a plugin may print on stdout before its handshake.
const (
	maxNoise      = 1000 // lines
	maxNoiseShown = 20   // lines that are logged
	noiseShown    = 200  // bytes of each
)

// announcement is go-plugin's handshake line:
//
//	1|<protocol version>|unix|<address>|grpc|<certificate>[|<multiplex>]
type announcement struct {
	core, version     int
	network, addr, by string
}

// parseAnnouncement reads a line of stdout. ok is false if the line is not of
// the handshake's shape, and so something that a plugin printed by mistake.
func parseAnnouncement(line string) (a announcement, ok bool) {
	parts := strings.Split(line, "|")
	if len(parts) < 4 {
		return a, false
	}
	var err1, err2 error
	a.core, err1 = strconv.Atoi(parts[0])
	a.version, err2 = strconv.Atoi(parts[1])
	a.network, a.addr = parts[2], parts[3]
	if err1 != nil || err2 != nil || a.network != "unix" && a.network != "tcp" {
		return a, false
	}
	if len(parts) > 4 {
		a.by = parts[4]
	}
	return a, true
}

// glued finds a handshake behind text that did not end its line, as a progress bar does
// not. The core version is one digit, so that digits before it are the text's.
var glued = regexp.MustCompile(`\d\|\d+\|(unix|tcp)\|[^|]+\|`)

// splitAnnouncement takes a line of stdout apart: what is not of the handshake, and the
// handshake, which is empty if there is none.
func splitAnnouncement(line []byte) (noise, handshake []byte, a announcement, ok bool) {
	trimmed := trimChatter(line)
	if a, ok = parseAnnouncement(string(trimmed)); ok {
		return nil, trimmed, a, true
	}
	if at := glued.FindIndex(trimmed); at != nil {
		handshake = trimmed[at[0]:]
		if a, ok = parseAnnouncement(string(handshake)); ok {
			return trimmed[:at[0]], handshake, a, true
		}
	}
	return line, nil, a, false
}

// check says why the host cannot talk to what was announced, or returns nil.
func (a announcement) check(path, socketDir string) *StartError {
	switch {
	case a.core != 1:
		return &StartError{Kind: KindVersion, Path: path, Message: fmt.Sprintf("it speaks version %d of go-plugin's handshake, this host version 1; build it with the pluginapi of this release", a.core)}
	case a.version < minProtocolVersion || a.version > ProtocolVersion:
		return &StartError{Kind: KindVersion, Path: path, Message: fmt.Sprintf("it speaks protocol version %d, this host %d to %d; build it with the pluginapi of this release, or run a host of its own", a.version, minProtocolVersion, ProtocolVersion)}
	case a.network != "unix":
		return &StartError{Kind: KindAddress, Path: path, Message: fmt.Sprintf("it announced %s %s; a plugin must listen on a Unix socket in the directory named by PLUGIN_UNIX_SOCKET_DIR", a.network, shorten(clean(a.addr), noiseShown))}
	case filepath.Dir(filepath.Clean(a.addr)) != filepath.Clean(socketDir):
		return &StartError{Kind: KindAddress, Path: path, Message: fmt.Sprintf("it announced the socket %s, which is outside of %s; a plugin must listen in the directory named by PLUGIN_UNIX_SOCKET_DIR", shorten(clean(a.addr), noiseShown), socketDir)}
	case a.by != "grpc":
		return &StartError{Kind: KindNotPlugin, Path: path, Message: fmt.Sprintf("it speaks %q and not grpc; build it with pluginapi", shorten(clean(a.by), noiseShown))}
	}
	return nil
}

// trimChatter takes from a line before the handshake what editors, shells and
// other systems put around it.
func trimChatter(line []byte) []byte {
	return bytes.TrimSpace(bytes.TrimPrefix(line, []byte("\xef\xbb\xbf")))
}
