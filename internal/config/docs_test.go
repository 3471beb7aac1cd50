package config

import (
	"bytes"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write docs/configuration.md anew")

// TestDocumentation holds docs/configuration.md to the table.
func TestDocumentation(t *testing.T) {
	const file = "../../docs/configuration.md"
	want := documentation()
	if *update {
		if err := os.WriteFile(file, want, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s is not what the table says; run: go test ./internal/config -update", file)
	}
}

func documentation() []byte {
	var b bytes.Buffer
	b.WriteString(`<!-- Written by "go test ./internal/config -update" from the table in internal/config/table.go. -->

# Configuration

A value comes from one of four layers; a later one wins:

1. the default,
2. the file given with ` + "`--config FILE`" + ` (a file, not a pipe: it is read more than once),
3. the environment: ` + "`CONDUIT_CFG_`" + ` and the key in capitals, with ` + "`_`" + ` for ` + "`.`" + `: ` + "`cluster.listen` is `CONDUIT_CFG_CLUSTER_LISTEN`" + `,
4. a flag: the key with dashes: ` + "`cluster.listen` is `--cluster-listen`" + `.

` + "`conduit-host config explain`" + ` shows every value with the place that it came from, ` + "`conduit-host config check`" + ` says what is wrong.
All layers are checked, also a value that a later layer hides.

## How values are written

The same in all three places:

| type | form | refused |
|---|---|---|
| duration | a number and its unit: ` + "`500ms`, `30s`, `1m30s`, `48h`" + ` | no unit (` + "`30`" + `), a space, a sign, less than the key takes |
| size | a number of ` + "`KiB`, `MiB` or `GiB`: `10MiB`, `1.5GiB`" + ` | no unit, ` + "`MB` and `M`" + ` (they mean different things to different people), zero |
| list | entries separated by commas; as a flag also repeated, in the file also a YAML list | an empty entry |
| map | ` + "`name=value`" + ` separated by commas, with ` + "`\\,`" + ` for a comma in a value and ` + "`\\\\`" + ` for a backslash; as a flag also repeated; in the file a YAML mapping, as it is | an entry without ` + "`=`" + `, a name twice |
| bool | ` + "`true` or `false`; `--flag` alone is `true`" + ` | ` + "`yes`, `on`, `1`" + ` |
| int | decimal digits | |
| enum | one of the words shown | |

## The file

YAML, and strict: an unknown key, a key at the wrong depth or in the wrong case, a key that is set twice, a key without a value and a second document are errors that
name the line and, where there is one, the key that was meant. An anchor may stand for a value; merge keys are not read.

` + "```yaml" + `
mode: worker
name: worker-1
cluster:
  listen: 127.0.0.1:7400
  max_payload: 10MiB
drain:
  timeout: 1m
host:
  deployments: ./deployments
auth:
  session_timeout: 12h
` + "```" + `

An environment variable that begins with ` + "`CONDUIT_CFG_`" + ` and is no key is warned about. ` + "`CONDUIT_CFG_SESSION`" + ` is not a key: it holds the session secret of the command line; nor is ` + "`CONDUIT_CFG_AUTH_ETCD_PASSWORD`" + `, the password of ` + "`auth.etcd.user`" + `.
Of other variables only ` + "`XDG_RUNTIME_DIR`" + ` and, on a terminal, ` + "`NO_COLOR`" + ` are looked at: what Kubernetes (` + "`CONDUIT_PORT=tcp://...`" + `), Nomad, systemd and others put there changes nothing, and nothing of it reaches a plugin.

## What fits together

` + "`config check`" + `, and ` + "`serve`" + ` at its start, look at values beside each other as well. What cannot work is an error that says which value to change:

- ` + "`drain.delay`" + ` and ` + "`drain.timeout`" + `, with 10 s for the elements' own end, within ` + "`drain.grace`" + `, if that is given: who is killed in the middle of a drain has drained for nothing,
- two probes within ` + "`cluster.dead_after`" + `, and that within ` + "`cluster.ping_interval`" + `; an answer within ` + "`registry.refresh`" + `,
- two messages of ` + "`cluster.max_payload`" + ` within ` + "`cluster.memory`" + `, and ` + "`cluster.link_memory`" + ` within it,
- certificates with their keys; listeners with ports of their own; off loopback only with ` + "`auth.mode: required`" + `, and the cluster's with a certificate or ` + "`cluster.insecure`" + `.

What works until it does not is a warning:

- ` + "`cluster.ping_interval`" + ` above 30 s: nginx and many load balancers cut a connection on which nothing has come for a minute,
- ` + "`gateway.max_body`" + ` above ` + "`cluster.max_payload`" + `: such a request is taken, and then refused,
- ` + "`cluster.max_payload`" + ` above 10 MiB with ` + "`host.reattach`" + `: the process that is debugged takes no more,
- a ` + "`drain.delay`" + ` in a mode without a gateway: peers are told at once, and wait for nothing.

## A new configuration

When the configuration file or the attributes file has changed, and on SIGHUP (` + "`systemctl reload`" + `), the file, the environment that the instance was started with and its flags are read again, all of it or nothing: a mistake, or a file that is empty because it is just being written, leaves everything as it was, and the log says so.
Keys that say "read again" below take effect then, and so do the contents of the files of certificates; of others that have changed the log says each by its name, and that it takes effect at the next start.

## Keys

*Later*: the name is fixed, but what it is for is not part of this version. Setting it to anything but its default is an error, so that no setting is silently without effect.
`)
	group := ""
	for _, k := range Keys() {
		g, _, dotted := strings.Cut(k.Name, ".")
		if !dotted {
			g = "instance"
		}
		if g != group {
			group = g
			fmt.Fprintf(&b, "\n### %s\n\n| key | type | default | what it is for |\n|---|---|---|---|\n", g)
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", k.Name, k.docType(), k.docDefault(), k.docText())
	}
	return b.Bytes()
}

func (k *Key) docType() string {
	if k.Kind == Enum {
		return "`" + strings.Join(k.Enum, "` `") + "`"
	}
	return k.Kind.String()
}

func (k *Key) docDefault() string {
	switch {
	case k.Computed != "":
		return k.Computed
	case k.Default == "" && k.Kind == List:
		return "`[]`"
	case k.Default == "" && k.Kind == Map:
		return "`{}`"
	case k.Default == "":
		return "none"
	default:
		return "`" + k.Default + "`"
	}
}

func (k *Key) docText() string {
	s := k.Meaning()
	if k.Later {
		s = "*Later*: " + s
	}
	return s
}
