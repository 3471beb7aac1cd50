package pluginlink

import (
	"os"

	"github.com/hashicorp/go-plugin"
)

// The handshake. These values are compiled into every plugin that was ever
// built: they should NEVER be changed. The cookie only lets a plugin that is
// run by hand say something friendly; it protects nothing.
const (
	cookieKey   = "CONDUIT_PLUGIN"
	cookieValue = "7c0f3d1b5a9e42d68e1b0c4f2a6d9358"
)

// ProtocolVersion is the newest version of the protocol between host and plugin
// that this package speaks; minProtocolVersion is the oldest. Negotiation picks
// the newest that both know.
//
// History: 1 is the first.
const (
	ProtocolVersion    = 1
	minProtocolVersion = 1
)

// What a host tells its plugin by environment. Part of the protocol.
const (
	envToken      = "CONDUIT_PLUGIN_TOKEN"       // hex; expected in the Hello of the host's link
	envHostPID    = "CONDUIT_PLUGIN_HOST_PID"    // decimal; the plugin ends when this process is gone
	envMaxMessage = "CONDUIT_PLUGIN_MAX_MESSAGE" // bytes of the largest message on any hop
	envLogLevel   = "CONDUIT_PLUGIN_LOG_LEVEL"   // hclog's name of the lowest level that the host keeps
	// envOwner stays in the environment of the plugin and of what it starts, so that a
	// later host knows what is left of this one's.
	envOwner  = "CONDUIT_PLUGIN_OWNER"
	envPrefix = "CONDUIT_PLUGIN" // no deployment may set variables that begin so
)

// pluginName is the one entry of go-plugin's plugin set.
const pluginName = "conduit"

// envelope is what a gRPC message may be larger than the largest message of a
// call: the frame around it.
const envelope = 64 << 10

const (
	grpcWindow = 16 << 20  // static HTTP/2 windows: flow control is the link's, gRPC's only gets in the way
	grpcBuffer = 128 << 10 // read and write buffer of a connection
)

func handshakeConfig() plugin.HandshakeConfig {
	return plugin.HandshakeConfig{MagicCookieKey: cookieKey, MagicCookieValue: cookieValue}
}

// versions gives go-plugin's map of the versions spoken. It is fresh at each
// call, since go-plugin writes into it.
func versions(p plugin.Plugin) map[int]plugin.PluginSet {
	m := map[int]plugin.PluginSet{}
	for v := minProtocolVersion; v <= ProtocolVersion; v++ {
		m[v] = plugin.PluginSet{pluginName: p}
	}
	return m
}

// Launched reports whether a host started this process as a plugin.
func Launched() bool { return os.Getenv(cookieKey) == cookieValue }

// LogLevel returns hclog's name of the lowest level that the host keeps, or ""
// if it did not say. A plugin need not write what is below.
func LogLevel() string { return os.Getenv(envLogLevel) }

// Versions returns the oldest and the newest version of the protocol between host and
// plugin that this package speaks.
func Versions() (oldest, newest int) { return minProtocolVersion, ProtocolVersion }
