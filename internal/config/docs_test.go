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
	s := k.Doc
	if k.Later {
		s = "*Later*: " + s
	}
	return s
}
