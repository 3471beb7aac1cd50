package manifest

import (
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"go.yaml.in/yaml/v4"
)

const schemaFile = "../../docs/deployment.schema.json"

func schema(t *testing.T) *jsonschema.Schema {
	t.Helper()
	c := jsonschema.NewCompiler()
	c.DefaultDraft(jsonschema.Draft2020)
	s, err := c.Compile(schemaFile)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// obeys reports whether a text obeys the schema, as an editor would see it.
func obeys(t *testing.T, s *jsonschema.Schema, text string) error {
	t.Helper()
	var v any
	if err := yaml.Unmarshal([]byte(text), &v); err != nil {
		return err
	}
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	inst, err := jsonschema.UnmarshalJSON(strings.NewReader(string(b)))
	if err != nil {
		t.Fatal(err)
	}
	return s.Validate(inst)
}

// everything is a manifest in which each key is said once.
const everything = `
elements:
  - name: greeter
    path: bin/greeter
    args: [--port, 80, true, "1.50"]
    env: {COLOUR: red, DEPTH: 3}
    sha256: {linux-amd64: E3B0C44298FC1C149AFBF4C8996FB92427AE41E4649B934CA495991B7852B855}
  - {name: greeter, path: bin/greeter}
attributes: {text: a, number: 1.50, truth: true, "odd-name/x.y": ""}
attributes_file: secrets.yaml
enabled: true
run_as: superuser
concurrency: 16
drain: {timeout: 0s, claims: release}
reload: stop-first
timeouts: {start: 1s, ready: 1m30s, health: 500ms, stop: 2s}
limits: {cpus: 1.5, memory_soft: 512MiB, files: 1024, core: 1GiB}
sandbox: best-effort
backoff: {min: 100ms, max: 1m, crash_loop_after: 3, stable_after: 10s}
`

// cases are manifests, and what is said of those that are bad. schemaCannot marks those
// whose fault no schema can tell: what lies between two values, or in a duration's size.
var cases = []struct {
	name, text   string
	says         []string // nil = good
	schemaCannot bool
}{
	{name: "empty", text: ""},
	{name: "comment", text: "# nothing\n"},
	{name: "null", text: "null\n"},
	{name: "everything", text: everything},
	{name: "json", text: `{"elements": [{"path": "a"}], "enabled": false}`},
	{name: "no elements", text: "attributes: {a: b}\n"},
	{name: "one name, two programs", text: "elements: [{name: e, path: a}, {name: e, path: b}]"},
	{name: "one program, two envs", text: "elements: [{path: a}, {path: a, env: {A: b}}]"},

	{name: "unknown key", text: "enabled: true\nconcurency: 1\n", says: []string{"m:2: concurency: is not a key", "did you mean concurrency?"}},
	{name: "unknown key below", text: "limits: {cpu: 1}", says: []string{"m:1: limits.cpu: ", "did you mean limits.cpus?"}},
	{name: "key at another place", text: "memory_soft: 1GiB", says: []string{"did you mean limits.memory_soft?"}},
	{name: "wrong case", text: "Elements: [{path: a}]", says: []string{"did you mean elements?"}},
	{name: "list", text: "- a\n", says: []string{"m:1: a deployment.yaml is a mapping"}},
	{name: "text", text: "hello", says: []string{"is a mapping"}},
	{name: "twice", text: "enabled: true\nenabled: false\n", says: []string{"m:2", "line 1"}},
	{name: "two documents", text: "enabled: true\n---\nenabled: true\n", says: []string{"m:2: a second document"}, schemaCannot: true},
	{name: "not YAML", text: "elements: [", says: []string{"m:", "not YAML"}},
	{name: "alias", text: "attributes: {a: &x 1, b: *x}", says: []string{"attributes.b: is an alias"}, schemaCannot: true},
	{name: "bomb", text: "attributes: &a {x: 1}\ntimeouts: *a\n", says: []string{"m:2: timeouts: is an alias"}},
	{name: "merge", text: "attributes: {<<: {a: b}}", says: []string{"merge keys"}, schemaCannot: true},
	{name: "no value", text: "attributes:\n  a:\n", says: []string{"m:2: attributes.a: has no value"}},

	{name: "no element", text: "elements: []", says: []string{"elements: is empty"}},
	{name: "elements as a mapping", text: "elements: {path: a}", says: []string{"m:1: elements: is a mapping; it takes a list"}},
	{name: "element as a text", text: "elements: [a]", says: []string{`elements[0]: is "a"`}},
	{name: "no path", text: "elements:\n  - path: a\n  - name: e\n", says: []string{"m:3: elements[1]: has no path"}},
	{name: "too many elements", text: "elements:\n" + strings.Repeat("  - {path: a, args: [x]}\n", 65), says: []string{"at most 64"}},
	{name: "the same twice", text: "elements:\n  - {name: e, path: a}\n  - {name: e, path: a}\n", says: []string{"m:3: elements[1]: is the same as elements[0] in line 2"}},
	{name: "the same twice, written otherwise", text: "elements: [{path: a}, {path: ./a}]", says: []string{"is the same as"}, schemaCannot: true},
	{name: "absolute", text: "elements: [{path: /bin/sh}]", says: []string{`elements[0].path: "/bin/sh" is absolute`}},
	{name: "up", text: "elements: [{path: a/../../b}]", says: []string{"has .. in it"}},
	{name: "directory itself", text: "elements: [{path: ./}]", says: []string{"names no file"}},
	{name: "empty path", text: `elements: [{path: ""}]`, says: []string{"is empty"}},
	{name: "control in path", text: `elements: [{path: "a\nb"}]`, says: []string{"control character"}},
	{name: "number as path", text: "elements: [{path: 1}]", says: []string{`write "1"`}},
	{name: "bad name", text: "elements: [{name: a/b, path: a}]", says: []string{"cannot be the name of an element"}},
	{name: "ordinal in name", text: "elements: [{name: 'a[1]', path: a}]", says: []string{"cannot be the name of an element"}},
	{name: "own name", text: "elements: [{name: conduit, path: a}]", says: []string{"the instance's own"}},
	{name: "dots", text: "elements: [{name: .., path: a}]", says: []string{"cannot be the name"}},
	{name: "any", text: "elements: [{name: '*', path: a}]", says: []string{"cannot be the name"}},
	{name: "list as argument", text: "elements: [{path: a, args: [[b]]}]", says: []string{"elements[0].args[0]: is a list"}},
	{name: "args as text", text: "elements: [{path: a, args: -x}]", says: []string{"it takes a list"}},
	{name: "PLUGIN_", text: "elements: [{path: a, env: {PLUGIN_X: 1}}]", says: []string{"elements[0].env.PLUGIN_X: may not be set"}},
	{name: "LD_", text: "elements: [{path: a, env: {LD_PRELOAD: x}}]", says: []string{"may not be set"}},
	{name: "cookie", text: "elements: [{path: a, env: {CONDUIT_PLUGIN: x}}]", says: []string{"may not be set"}},
	{name: "no variable", text: "elements: [{path: a, env: {1A: x}}]", says: []string{"is no name of a variable"}},
	{name: "set twice", text: "limits: {cpus: 1}\nelements: [{path: a, env: {GOMAXPROCS: 2}}]", says: []string{"limits.cpus sets"}, schemaCannot: true},
	{name: "short sum", text: "elements: [{path: a, sha256: {linux-amd64: abc}}]", says: []string{"no SHA-256"}},
	{name: "no machine", text: "elements: [{path: a, sha256: {Linux: " + strings.Repeat("0", 63) + "a}}]", says: []string{"linux-amd64"}},

	{name: "attribute list", text: "attributes: {a: [1]}", says: []string{"attributes.a: is a list"}},
	{name: "empty attribute", text: `attributes: {"": 1}`, says: []string{"the name of an attribute is empty"}},
	{name: "attribute with a space", text: `attributes: {"a b": 1}`, says: []string{"the name of an attribute has a space"}},
	{name: "attribute with a comma", text: `attributes: {"a,b": 1}`, says: []string{"the name of an attribute has a space"}},
	{name: "attribute with a backslash", text: `attributes: {'a\b': 1}`, says: []string{"the name of an attribute has a space"}},
	{name: "attributes_file outside", text: "attributes_file: ../secrets", says: []string{"attributes_file: \"../secrets\" has .."}},
	{name: "enabled text", text: `enabled: "true"`, says: []string{"true or false"}},
	{name: "enabled yes", text: "enabled: yes", says: []string{"true or false"}},
	{name: "system", text: "run_as: system", says: []string{"is none of anonymous, user, superuser"}},
	{name: "slip", text: "reload: start-frist", says: []string{"did you mean start-first?"}},
	{name: "sandbox", text: "sandbox: on", says: []string{"is none of off, best-effort, required"}},
	{name: "claims", text: "drain: {claims: keep}", says: []string{"is none of wait, release"}},
	{name: "no concurrency", text: "concurrency: 0", says: []string{"1 to 1048576"}},
	{name: "half", text: "concurrency: 1.5", says: []string{"a whole number"}},
	{name: "concurrency text", text: `concurrency: "5"`, says: []string{"a whole number"}},
	{name: "no unit", text: "drain: {timeout: 30}", says: []string{"has no unit"}},
	{name: "negative", text: "drain: {timeout: -1s}", says: []string{"has a sign"}},
	{name: "too short", text: "timeouts: {start: 1ms}", says: []string{"the least is 10ms"}, schemaCannot: true},
	{name: "too long", text: "timeouts: {start: 999999h}", says: []string{"ten years"}, schemaCannot: true},
	{name: "no time", text: "timeouts: {ready: 0s}", says: []string{"too short"}, schemaCannot: true},
	{name: "no cpu", text: "limits: {cpus: 0}", says: []string{"more than 0"}},
	{name: "cpu text", text: "limits: {cpus: two}", says: []string{"a number, such as 2"}},
	{name: "many cpus", text: "limits: {cpus: 5000}", says: []string{"at most 4096"}},
	{name: "MB", text: "limits: {memory_soft: 512MB}", says: []string{"different things"}},
	{name: "bytes", text: "limits: {memory_soft: 1048576}", says: []string{"has no unit"}},
	{name: "little memory", text: "limits: {memory_soft: 1KiB}", says: []string{"the least is 4MiB"}, schemaCannot: true},
	{name: "few files", text: "limits: {files: 3}", says: []string{"16 to"}},
	{name: "backwards", text: "backoff: {min: 2s, max: 1s}", says: []string{"is more than backoff.max"}, schemaCannot: true},
	{name: "group as value", text: "drain: 30s", says: []string{`drain: is "30s"; it takes a mapping`}},
}

// TestSchemaAgrees: what Parse takes, the schema takes, and what it refuses, the schema
// does, as far as one can.
func TestSchemaAgrees(t *testing.T) {
	s := schema(t)
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			_, err := Parse("m", []byte(c.text))
			if (err != nil) != (c.says != nil) {
				t.Fatalf("Parse: %v, want a fault: %t", err, c.says != nil)
			}
			for _, text := range c.says {
				if !strings.Contains(err.Error(), text) {
					t.Errorf("it does not say %q: %v", text, err)
				}
			}
			switch why := obeys(t, s, c.text); {
			case c.says == nil && why != nil:
				t.Errorf("the schema refuses it: %v", why)
			case c.says != nil && !c.schemaCannot && why == nil:
				t.Error("the schema takes it")
			case c.schemaCannot && why != nil:
				t.Errorf("the schema can tell: %v", why)
			}
		})
	}
}

// TestSchemaKeys: each key is in the schema, with a word on what it is for, and no other is.
func TestSchemaKeys(t *testing.T) {
	b, err := os.ReadFile(schemaFile)
	if err != nil {
		t.Fatal(err)
	}
	var root map[string]any
	if err := json.Unmarshal(b, &root); err != nil {
		t.Fatal(err)
	}
	var keys []string
	var walk func(s map[string]any, at string)
	walk = func(s map[string]any, at string) {
		properties, ok := s["properties"].(map[string]any)
		if !ok {
			return
		}
		if s["additionalProperties"] != false {
			t.Errorf("%q may have keys that are not there", at)
		}
		for key, v := range properties {
			path := join(at, key)
			keys = append(keys, path)
			sub, ok := v.(map[string]any)
			if !ok {
				t.Fatalf("%s is no schema", path)
			}
			if _, group := sub["properties"]; !group && sub["description"] == nil {
				t.Errorf("%s has no description", path)
			}
			walk(sub, path)
			if items, ok := sub["items"].(map[string]any); ok {
				walk(items, path+"[]")
			}
		}
	}
	walk(root, "")
	slices.Sort(keys)
	if want := Keys(); !slices.Equal(keys, want) {
		t.Errorf("the schema has the keys\n%q\nand the type\n%q", keys, want)
	}
	said := everything
	for _, key := range keys {
		if last := key[strings.LastIndexByte(key, '.')+1:]; !strings.Contains(said, last+":") {
			t.Errorf("the case with everything does not have %s", key)
		}
	}
}

// TestPage: the example of docs/plugin-host.md is one that is taken, and has every key.
func TestPage(t *testing.T) {
	page, err := os.ReadFile("../../docs/plugin-host.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok := strings.Cut(string(page), "## A directory with deployment.yaml\n")
	_, rest, ok1 := strings.Cut(rest, "```yaml\n")
	text, _, ok2 := strings.Cut(rest, "```\n")
	if !ok || !ok1 || !ok2 {
		t.Fatal("there is no example")
	}
	m, err := Parse("m", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	if err := obeys(t, schema(t), text); err != nil {
		t.Error(err)
	}
	for _, key := range Keys() {
		if key = strings.Replace(key, "[]", "[0]", 1); m.lines[key] == 0 {
			t.Errorf("it does not show %s", key)
		}
	}
}
