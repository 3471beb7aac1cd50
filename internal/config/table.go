package config

import (
	"time"

	"github.com/elemental-conduit/conduit/internal/values"
)

const (
	kib = values.KiB
	mib = values.MiB
	gib = values.GiB

	// An instance that answers a shorter interval than this does nothing else.
	shortest = int64(10 * time.Millisecond)
)

// Keys returns the table, in the order in which explain and the documentation
// show it. A computed default may depend on keys that stand above it only.
func Keys() []Key {
	return []Key{
		{
			Name: "mode", Kind: Enum, Default: "external", Enum: []string{"external", "worker", "both"},
			Doc: "what the instance is: `worker` serves `/cluster/v1`, `external` is a client of the cluster with an HTTP gateway, `both` is for one machine",
		},
		{
			Name: "name", Computed: "host name (external: host name + `-ext`)", compute: defaultName, check: checkName,
			Doc: "the instance's name; two instances of one machine need two",
		},
		{Name: "data_dir", Default: "./data", Doc: "where the instance keeps what must outlive it; its private files are in `<data_dir>/instances/<name>/`"},
		{
			Name: "run_dir", Computed: "`$XDG_RUNTIME_DIR/conduit/<8 hex of the data_dir's hash>`, else `<data_dir>/run`", compute: defaultRunDir,
			Doc: "sockets and locks of running instances; private (0700), and short enough for a socket's path",
		},
		{
			Name: "instance.id_file", Computed: "`instance-id.txt` in the private directory", compute: defaultIDFile,
			Doc: "the file that holds the InstanceID of a worker; relative to the private directory",
		},

		{Name: "cluster.listen", Default: "127.0.0.1:7400", check: checkListen, Doc: "where `/cluster/v1` is served; when the default port is taken the next free one is used and printed, a port that was asked for must be free"},
		{Name: "cluster.advertise", Computed: "from `cluster.listen`", Optional: true, Later: true, Doc: "the address that others are told to call"},
		{Name: "cluster.insecure", Kind: Bool, Default: "false", Doc: "allows `ws://` off loopback: to peers, and where `cluster.listen` is; sessions and payloads can be read on the way"},
		{Name: "cluster.tls.cert", Optional: true, Doc: "certificate chain of `/cluster/v1` (PEM), shown as well to peers that ask for one; read again when it changes"},
		{Name: "cluster.tls.key", Optional: true, Doc: "its private key (PEM)"},
		{Name: "cluster.tls.client_ca", Optional: true, Doc: "authorities of the certificates that callers must have (PEM); an instance's must name it"},
		{Name: "cluster.tls.ca", Optional: true, Doc: "authorities of peers' certificates (PEM), in place of the system's"},
		{Name: "cluster.anonymous", Kind: Bool, Default: "true", Doc: "whether callers without a session are let in, also by the gateway; they reach what asks for no level"},
		{Name: "cluster.origins", Kind: List, Doc: "origins of web pages that may connect; without any, a browser may not", check: checkOrigins},
		{Name: "cluster.link", Kind: Enum, Default: "multiplexed", Enum: []string{"multiplexed", "per-call"}, Doc: "one link for all calls to a peer, or one for each call, which costs 20 to 40 times as much and is for proxies that balance by connection"},
		{Name: "cluster.dial_timeout", Kind: Duration, Default: "5s", Min: shortest, Doc: "how long a link may take to be made"},
		{Name: "cluster.idle_timeout", Kind: Duration, Default: "5m", Min: shortest, Later: true, Doc: "after which an idle link is closed by the side that dialled it"},
		{Name: "cluster.ping_interval", Kind: Duration, Default: "20s", Min: shortest, Doc: "how often an idle link is tried"},
		{Name: "cluster.probe_interval", Kind: Duration, Default: "1s", Min: shortest, Doc: "how often a link is tried while an answer is awaited and nothing comes"},
		{Name: "cluster.dead_after", Kind: Duration, Default: "3s", Min: shortest, Doc: "how long a peer may leave probes unanswered"},
		{Name: "cluster.max_payload", Kind: Size, Default: "10MiB", Min: 4 * kib, Max: gib, Doc: "the largest message: one argument, result or stream item"},
		{Name: "cluster.max_calls", Kind: Int, Default: "4096", Min: 1, Max: 1 << 20, Doc: "calls under way on one link"},
		{Name: "cluster.max_links", Kind: Int, Default: "4096", Min: 1, Max: 1 << 20, Doc: "links at once"},
		{Name: "cluster.memory", Kind: Size, Default: "256MiB", Min: mib, Doc: "what all links together may hold of messages under way"},
		{Name: "cluster.link_memory", Kind: Size, Default: "16MiB", Min: 64 * kib, Doc: "what one link may hold"},
		{Name: "cluster.call_timeout", Kind: Duration, Default: "30s", Min: shortest, Doc: "the deadline of unary calls that set none"},

		{Name: "drain.timeout", Kind: Duration, Default: "30s", Min: 0, Doc: "how long calls under way may take to end when the instance stops; `0s` cancels them at once"},
		{Name: "drain.claims", Kind: Enum, Default: "wait", Enum: []string{"wait", "release"}, Doc: "what becomes of claims that a replaced plugin still holds after `drain.timeout`: `wait` lets it live until they are given back, `release` ends them; a deployment may say otherwise"},
		{Name: "drain.delay", Kind: Duration, Computed: "`0s` (external: `5s`)", Min: 0, compute: defaultDrainDelay, Doc: "how long `/readyz` says 503 before calls are refused, for load balancers that need to notice"},
		{Name: "drain.grace", Kind: Duration, Default: "0s", Min: 0, Doc: "how long whoever stops the instance waits before it kills it: systemd's `TimeoutStopSec`, Kubernetes' `terminationGracePeriodSeconds` less its `preStop`; with it a drain that would be cut short is refused at the start; `0s`: not known"},

		{Name: "discovery.static", Reloadable: true, Kind: List, Doc: "peers: `host:port`, `ws://host:port`, `wss://host:port/cluster/v1`", check: checkPeers},
		{Name: "discovery.srv.name", Optional: true, Doc: "DNS name whose SRV records are the peers, such as `_elements._tcp.internal`; empty: none", check: checkSRVName},
		{Name: "discovery.srv.servers", Kind: List, Doc: "DNS servers to ask instead of the system's: `10.0.0.2`, `10.0.0.2:8600`, `tcp://10.0.0.2:8600`", check: checkSRVServers},
		{Name: "discovery.srv.interval", Kind: Duration, Default: "5s", Min: shortest, Doc: "how often to ask"},
		{Name: "discovery.stale", Kind: Duration, Default: "5m", Min: shortest, Doc: "how long the last known peers hold when lookups fail"},
		{Name: "discovery.hold_down", Kind: Duration, Default: "10s", Min: 0, Doc: "how long a peer that is no longer listed is kept"},

		{Name: "registry.refresh", Kind: Duration, Default: "30s", Min: shortest, Doc: "how often peers are asked what they host"},
		{Name: "registry.refresh_timeout", Kind: Duration, Default: "1s", Min: shortest, Doc: "how long a peer may take to answer that"},
		{Name: "registry.policy", Kind: Enum, Default: "p2c", Enum: []string{"p2c", "headroom"}, Doc: "how a peer is picked"},
		{Name: "registry.prefer_local", Kind: Bool, Default: "true", Doc: "whether this instance's own element comes first"},
		{Name: "registry.attempts", Kind: Int, Default: "3", Min: 1, Max: 16, Doc: "how many peers a call may be tried on"},

		{Name: "budget.total", Kind: Int, Default: "1000", Min: 0, Max: 1 << 31, Doc: "units of capacity of this instance"},

		{Name: "host.deployments", Computed: "`./deployments` if it exists", Optional: true, compute: defaultDeployments, Doc: "the directory of plugin binaries to run; empty: none"},
		{Name: "host.attributes", Reloadable: true, Kind: Map, Doc: "what all elements of the instance are told: over their own defaults, below what their deployment says", check: checkAttributes},
		{Name: "host.attributes_file", Reloadable: true, Optional: true, Doc: "a file of further ones, below `host.attributes`, whose values are secrets and shown nowhere: a YAML mapping of names to values, which nobody but its owner may read (0600)"},
		{Name: "host.rescan", Kind: Duration, Default: "30s", Min: shortest, Doc: "how often the whole directory is read again, whatever its file events say"},
		{Name: "host.verify", Kind: Enum, Default: "off", Enum: []string{"off", "checksum", "required"}, Doc: "whether plugins must have the checksum that `SHA256SUMS` in the deployments directory gives them; `checksum`: those that it names; `required`: all, and what it does not name is refused"},
		{Name: "host.start_timeout", Kind: Duration, Default: "10s", Min: shortest, Doc: "how long a plugin may take from its start to its handshake"},
		{Name: "host.ready_timeout", Kind: Duration, Default: "60s", Min: shortest, Doc: "how long a plugin may take from its handshake until it serves"},
		{Name: "host.concurrency", Kind: Int, Default: "1024", Min: 1, Max: 1 << 20, Doc: "calls under way in one element"},
		{Name: "host.log_size", Kind: Size, Default: "10MiB", Min: 64 * kib, Max: gib, Doc: "how large the file of a deployment's log may get before it becomes an old one"},
		{Name: "host.log_files", Kind: Int, Default: "3", Min: 1, Max: 100, Doc: "old files of a deployment's log that are kept"},
		{Name: "host.allow_unsafe", Kind: Bool, Default: "false", Doc: "lets plugins run that others than this user and root can change"},
		{Name: "host.reattach", Kind: Map, Doc: "for development only: deployments (or `NAME/ELEMENT`, where one has several) whose element is served by a process that `<binary> debug` has started, as name=socket; its checksum, sandbox and health are not looked after"},
		{Name: "host.sandbox", Kind: Enum, Default: "off", Enum: []string{"off", "best-effort", "required"}, Doc: "whether plugins are confined to their own files: not at all, as far as this kernel can, or wholly or not started"},
		{Name: "host.plugin_tls", Kind: Enum, Default: "off", Enum: []string{"off", "auto"}, Later: true, Doc: "TLS between host and plugin"},
		{Name: "host.remote_admin", Kind: Bool, Default: "false", Doc: "whether `/cluster/v1` answers administrators (`superuser` and above), who else are heard on the management socket only"},

		{
			Name: "auth.mode", Kind: Enum, Default: "required", Enum: []string{"required", "disabled"},
			Doc: "`required`: callers are who their session says, and anonymous without one; `disabled`: every caller is `superuser`, so all listeners must be loopback",
		},
		{Name: "auth.store", Computed: "`bolt:<data_dir>/auth.db`", compute: defaultStore, check: checkStore, Doc: "users and sessions: `bolt:PATH`, a file that the instances of one machine share, or `etcd://h1,h2/prefix`, for the instances of a cluster; made if it is not there"},
		{Name: "auth.etcd.user", Optional: true, Doc: "the user of etcd that may read and write what is below the prefix; its password is in `auth.etcd.password_file`, or in the environment as `CONDUIT_CFG_AUTH_ETCD_PASSWORD`"},
		{Name: "auth.etcd.password_file", Optional: true, Doc: "a file with the password, which nobody but its owner may read (0600)"},
		{Name: "auth.etcd.tls.ca", Optional: true, Doc: "authorities of the certificates of etcd's servers (PEM), in place of the system's"},
		{Name: "auth.etcd.tls.cert", Optional: true, Doc: "certificate chain to show to etcd (PEM)"},
		{Name: "auth.etcd.tls.key", Optional: true, Doc: "its private key (PEM)"},
		{Name: "auth.etcd.insecure", Kind: Bool, Default: "false", Doc: "speaks to etcd off loopback without TLS; hashes of passwords and the password of `auth.etcd.user` can be read on the way"},
		{Name: "auth.session_timeout", Kind: Duration, Default: "48h", Min: int64(time.Second), Max: int64(10 * 365 * 24 * time.Hour), Doc: "how long a session lasts after its last use"},

		{Name: "gateway.listen", Default: "127.0.0.1:7480", check: checkListen, Doc: "where the HTTP gateway is served, by `external` and `both`; when the default port is taken the next free one is used and printed"},
		{Name: "gateway.tls.cert", Optional: true, Doc: "certificate chain of the gateway (PEM), read again when it changes; without one it speaks plain HTTP"},
		{Name: "gateway.tls.key", Optional: true, Doc: "its private key (PEM)"},
		{Name: "gateway.cors", Kind: List, Doc: "origins of web pages that may call, such as `https://app.example`; `*` is all, and none may without", check: checkCORS},
		{Name: "gateway.trusted_proxies", Kind: List, check: checkNetworks, Doc: "networks, such as `10.0.0.0/8`, of the proxies before the gateway: their `X-Forwarded-For` or `Forwarded` says where a request comes from, for the limits on attempts and the audit; of nobody else is it believed"},
		{Name: "gateway.max_body", Kind: Size, Default: "10MiB", Min: kib, Max: gib, Doc: "the largest request body"},

		{Name: "ops.listen", Default: "127.0.0.1:7490", check: checkListen, Doc: "where `/livez`, `/readyz` and `/metrics` are served, and `/debug/pprof/` to loopback; when the default port is taken the next free one is used and printed"},
		{Name: "ops.tls.cert", Optional: true, Doc: "certificate chain of the ops listener (PEM), read again when it changes; without one it speaks plain HTTP"},
		{Name: "ops.tls.key", Optional: true, Doc: "its private key (PEM)"},

		{Name: "log.level", Reloadable: true, Kind: Enum, Default: "info", Enum: []string{"trace", "debug", "info", "warn", "error"}, Doc: "the least severe line to write"},
		{Name: "log.format", Kind: Enum, Computed: "`json` (`text` on a terminal)", Enum: []string{"json", "text"}, compute: defaultLogFormat, Doc: "how log lines look"},
		{Name: "log.calls", Kind: Enum, Default: "off", Enum: []string{"off", "failed", "all"}, Doc: "which calls to elements here and requests to the gateway are logged when they are over, each a line with its `trace_id`"},
		{Name: "tracing.otlp_endpoint", Optional: true, Later: true, Doc: "where traces are sent"},
	}
}
