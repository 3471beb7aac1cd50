package host

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/hashicorp/go-hclog"

	"github.com/elemental-conduit/conduit"
	"github.com/elemental-conduit/conduit/address"
	"github.com/elemental-conduit/conduit/internal/link"
	"github.com/elemental-conduit/conduit/internal/pluginlink"
	conduitv1 "github.com/elemental-conduit/conduit/proto/conduit/v1"
)

const toldAt = "*://told/told/test.Fixture"

// toldAttributes is what the element told declares.
func toldAttributes(element string) []*conduitv1.AttributeDescription {
	if element != "told" {
		return nil
	}
	greeting := "hello"
	return []*conduitv1.AttributeDescription{
		{Name: "greeting", Default: &greeting},
		{Name: "motto", Default: &greeting},
		{Name: "password", Sensitive: true},
		{Name: "needed", Required: true},
	}
}

// tell is Configure of the element told: it does as its attributes say.
func (f *fixture) tell() (*conduitv1.ConfigureResponse, error) {
	a := f.given.GetAttributes()
	if a["fail"] != "" {
		return nil, errors.New("cannot work with " + a["fail"])
	}
	if a["print"] != "" {
		_, _ = fmt.Fprintf(os.Stderr, "started with %s\n", a["print"])
		_, _ = fmt.Fprintf(os.Stdout, "{\"@level\":\"info\",\"@message\":\"started\",\"with\":%q}\n", a["print"])
	}
	if a["warn"] != "" {
		return &conduitv1.ConfigureResponse{Warnings: []string{"careful with " + a["warn"]}}, nil
	}
	return nil, nil
}

// hostService asks the host what the method says.
func (f *fixture) hostService(ctx context.Context, s *link.ServerCall, method, data string) ([]byte, error) {
	f.mu.Lock()
	conn := f.conn
	f.mu.Unlock()
	ask := func(ctx context.Context, method string, request any) conduit.Exchange {
		ct, data, err := conduit.EncodeFor(conduit.ContentProto, request)
		if err != nil {
			panic(err)
		}
		return conn.Invoke(ctx, link.NewRoute(address.MustParse(pluginlink.HostAddress)), &conduit.Invocation{
			Method: method, ContentType: ct, Accept: ct, Request: data, HasRequest: true, Last: true, Streaming: true, Background: true,
		})
	}
	switch method {
	case "Told": // what Configure said, and what the host says now
		m, err := ask(ctx, pluginlink.AttributesMethod, &conduitv1.AttributesRequest{}).Recv(ctx)
		if err != nil {
			return nil, err
		}
		now, err := conduit.Decode[*conduitv1.AttributesResponse](m)
		if err != nil {
			return nil, err
		}
		if !maps.Equal(now.GetAttributes(), f.given.GetAttributes()) || !slices.Equal(now.GetSensitive(), f.given.GetSensitiveAttributes()) {
			return nil, fmt.Errorf("configured with %v, asked %v", f.given, now)
		}
		return json.Marshal(map[string]any{"attributes": now.GetAttributes(), "sensitive": now.GetSensitive()})
	case "Subscribe": // for as long as the process lives, and for nobody
		x := ask(context.Background(), pluginlink.EventsMethod, &conduitv1.HostEventsRequest{})
		_, err := x.Recv(ctx)
		go func() {
			for err == nil {
				_, err = x.Recv(context.Background())
			}
		}()
		return nil, err
	}
	in := &conduitv1.HostEventsRequest{}
	if data != "" {
		in.Names = strings.Split(data, ",")
	}
	x := ask(ctx, pluginlink.EventsMethod, in)
	defer x.Cancel(nil)
	for {
		m, err := x.Recv(ctx)
		if err != nil {
			return nil, err
		}
		if err := s.Send(ctx, m); err != nil {
			return nil, err
		}
	}
}

// toldBy returns what an element says that it was told.
func (r *rig) toldBy(addr string) (values map[string]string, sensitive []string) {
	r.t.Helper()
	text, err := r.call(addr, "Told", "")
	if err != nil {
		r.t.Fatal(err)
	}
	var out struct {
		Attributes map[string]string
		Sensitive  []string
	}
	if err := json.Unmarshal([]byte(text), &out); err != nil {
		r.t.Fatal(err)
	}
	return out.Attributes, out.Sensitive
}

// TestAttributesOrder: the element's default, over it the instance's, over it the
// deployment's; each element gets its own defaults alone.
func TestAttributesOrder(t *testing.T) {
	h, err := New(Options{Dir: t.TempDir(), Private: t.TempDir(), Attributes: MergeAttributes(
		NewAttributes(FromInstance, false, map[string]string{"motto": "i", "both": "i", "password": "plain", "file": "i"}),
		NewAttributes(FromInstance, true, map[string]string{"file": "if"}))})
	if err != nil {
		t.Fatal(err)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	f := h.withAttributes(finding{name: "d", binary: &binary{sum: "s"}, attributes: NewAttributes(FromDeployment, false, map[string]string{"both": "d", "file": "df"})})
	all, warnings := attributesFor(&conduitv1.Description{Attributes: toldAttributes("told")}, f.binary.attributes)
	want := Attributes{
		"greeting": {Value: "hello", Source: FromDefault},
		"motto":    {Value: "i", Source: FromInstance},
		"both":     {Value: "d", Source: FromDeployment},
		"password": {Value: "plain", Sensitive: true, Source: FromInstance}, // its author says so
		"file":     {Value: "df", Sensitive: true, Source: FromDeployment},  // it was in a file of secrets
	}
	if !maps.Equal(all, want) {
		t.Errorf("it is told %#v, want %#v", all, want)
	}
	if len(warnings) != 1 || !strings.Contains(warnings[0], "needed") {
		t.Errorf("the warnings are %q", warnings)
	}
	other, warnings := attributesFor(&conduitv1.Description{}, f.binary.attributes)
	if _, bled := other["greeting"]; bled || len(warnings) != 0 || other["password"].Sensitive {
		t.Errorf("another element is told %#v, %q", other, warnings)
	}
}

// TestAttributesTellVersions: what runs is another thing with other attributes, and the
// same with the same.
func TestAttributesTellVersions(t *testing.T) {
	version := func(instance, deployment Attributes) string {
		h := &Host{attributes: instance}
		return h.withAttributes(finding{binary: &binary{sum: "s"}, attributes: deployment}).binary.id()
	}
	one := NewAttributes(FromInstance, false, map[string]string{"a": "1", "b": "2"})
	if version(one, nil) != version(nil, MergeAttributes(one)) {
		t.Error("where a value comes from makes a difference")
	}
	seen := map[string]int{}
	for i, a := range []Attributes{
		nil, one, NewAttributes("", false, map[string]string{"a": "1", "b": "3"}), NewAttributes("", false, map[string]string{"a": "1"}),
		NewAttributes("", true, map[string]string{"a": "1", "b": "2"}), NewAttributes("", false, map[string]string{"a": "11:b1:2"}),
	} {
		v := version(a, nil)
		if other, same := seen[v]; same {
			t.Errorf("sets %d and %d are one version", other, i)
		}
		seen[v] = i
	}
}

// TestChangedAttributesReload: another value is another process, and no call fails; one
// with which the element cannot start leaves the old process serving.
func TestChangedAttributesReload(t *testing.T) {
	plain := func(pairs ...string) Attributes {
		m := map[string]string{"needed": "yes"}
		for i := 0; i < len(pairs); i += 2 {
			m[pairs[i]] = pairs[i+1]
		}
		return NewAttributes(FromInstance, false, m)
	}
	r := newRigWith(t, func(o *Options) { o.Attributes = plain("motto", "one") }, "told", "echo")
	r.ready()
	first := r.elements()
	if values, _ := r.toldBy(toldAt); values["motto"] != "one" || values["greeting"] != "hello" || values["needed"] != "yes" {
		t.Errorf("it is told %v", values)
	}
	if w := first["told"].Warnings; len(w) != 0 {
		t.Errorf("it warns %q", w)
	}
	stop := r.load(toldAt, 4)
	mustDo(t, r.h.SetAttributes(plain("motto", "one"))) // nothing new
	mustDo(t, r.h.SetAttributes(plain("motto", "two")))
	second := r.until("the next generation", func(m map[string]ElementStatus) bool { return m["told"].Generation == 2 && len(m["told"].Old) == 0 })["told"]
	if calls, failed := stop(); len(failed) > 0 || calls == 0 {
		t.Errorf("of %d calls failed: %v", calls, failed)
	}
	if values, _ := r.toldBy(toldAt); values["motto"] != "two" {
		t.Errorf("it is told %v", values)
	}
	if second.Sum != first["told"].Sum || second.Pid == first["told"].Pid || second.Restarts != 0 {
		t.Errorf("it was %+v, it is %+v", first["told"], second)
	}
	mustDo(t, r.h.SetAttributes(plain("fail", "that")))
	r.until("the failure of the next", func(m map[string]ElementStatus) bool {
		s := m["told"]
		return s.Generation == 2 && s.Pid == second.Pid && s.State == Ready && len(s.Warnings) == 1 && strings.Contains(s.Warnings[0], "cannot work with that")
	})
	mustDo(t, r.h.SetAttributes(plain("motto", "two"))) // as it was: nothing is left to be done
	r.until("the old state", func(m map[string]ElementStatus) bool {
		return len(m["told"].Warnings) == 0 && m["told"].Pid == second.Pid
	})
	if err := r.h.SetAttributes(Attributes{"a b": {}}); err == nil {
		t.Error("a bad name is taken")
	}
	if s := r.elements()["told"]; s.Generation != 2 || s.Pid != second.Pid {
		t.Errorf("it is %+v", s)
	}
}

// TestAttributesOutliveACrash: the process after a crash is told what the one
// before was.
func TestAttributesOutliveACrash(t *testing.T) {
	r := newRigWith(t, func(o *Options) {
		o.Attributes = NewAttributes(FromInstance, false, map[string]string{"motto": "kept"})
	}, "told")
	r.ready()
	first := r.elements()["told"].Pid
	_, _ = r.call(toldAt, "Exit", "")
	r.until("another process", func(m map[string]ElementStatus) bool { s := m["told"]; return s.State == Ready && s.Pid != first })
	if values, _ := r.toldBy(toldAt); values["motto"] != "kept" {
		t.Errorf("it is told %v", values)
	}
}

// safeBuffer takes a log.
type safeBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *safeBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *safeBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// TestSensitiveAttributesDoNotShow: whatever the element says of its secret, and however
// it is asked about, the secret reaches the element alone.
func TestSensitiveAttributesDoNotShow(t *testing.T) {
	const secret = `hunter2 "quoted" <&>`
	for name, given := range map[string]map[string]string{
		"prints":   {"print": secret},
		"warns":    {"warn": secret},
		"is ill":   {"ill": secret},
		"is alone": {"password": secret},
	} {
		t.Run(name, func(t *testing.T) {
			log := &safeBuffer{}
			// The element's author says it of password; of all else, the file.
			r := newRigWith(t, func(o *Options) {
				o.Attributes = MergeAttributes(NewAttributes(FromInstance, false, map[string]string{"needed": "shown", "password": "x"}), NewAttributes(FromInstance, name != "is alone", given))
				o.Log = hclog.New(&hclog.LoggerOptions{Level: hclog.Trace, Output: log, JSONFormat: true})
			}, "told")
			r.ready()
			values, sensitive := r.toldBy(toldAt)
			for key := range given {
				if values[key] != secret || !slices.Contains(sensitive, key) {
					t.Errorf("the element is told %v, sensitive %v", values, sensitive)
				}
			}
			s := r.elements()["told"]
			switch name {
			case "prints":
				s = r.until("its output", func(m map[string]ElementStatus) bool { return len(m["told"].Stderr) > 0 })["told"]
				if !strings.Contains(s.Stderr[0], "started with "+Redacted) {
					t.Errorf("its stderr is %q", s.Stderr)
				}
			case "warns":
				if len(s.Warnings) != 1 || s.Warnings[0] != "careful with "+Redacted {
					t.Errorf("its warnings are %q", s.Warnings)
				}
			case "is ill":
				s = r.untilState("told", Degraded)
				if s.Reason != "it is "+Redacted {
					t.Errorf("its reason is %q", s.Reason)
				}
			}
			shown := map[string]AttributeStatus{}
			for _, a := range s.Attributes {
				shown[a.Name] = a
			}
			for key := range given {
				if a := shown[key]; a.Value != "" || !a.Sensitive || a.Source != FromInstance {
					t.Errorf("%s is shown as %+v", key, a)
				}
			}
			if a := shown["needed"]; a.Value != "shown" || a.Sensitive {
				t.Errorf("needed is shown as %+v", a)
			}
			wantSecret(t, "the status", fmt.Sprintf("%+v", s), secret)
			asJSON, err := json.Marshal(r.h.Snapshot())
			if err != nil {
				t.Fatal(err)
			}
			wantSecret(t, "the status as JSON", string(asJSON), secret)
			wantSecret(t, "the log", log.String(), secret)
		})
	}
}

// A start that fails over a secret says so without it.
func TestSensitiveAttributesDoNotShowInErrors(t *testing.T) {
	const secret = "hunter2-and-more"
	log := &safeBuffer{}
	r := newRigWith(t, func(o *Options) {
		o.Attributes = NewAttributes(FromInstance, true, map[string]string{"fail": secret, "print": secret})
		o.Log = hclog.New(&hclog.LoggerOptions{Level: hclog.Trace, Output: log})
	}, "told")
	r.ready()
	s := r.until("its failure", func(m map[string]ElementStatus) bool { return m["told"].LastError != "" })["told"]
	if !strings.Contains(s.LastError, "cannot work with "+Redacted) {
		t.Errorf("the error is %q", s.LastError)
	}
	wantSecret(t, "the status", fmt.Sprintf("%+v", s), secret)
	wantSecret(t, "the log", log.String(), secret)
}

// wantSecret checks that a text has nothing of a secret, quoted or not.
func wantSecret(t *testing.T, what, text, secret string) {
	t.Helper()
	for _, part := range []string{secret, "hunter2"} {
		if i := strings.Index(text, part); i >= 0 {
			t.Errorf("%s shows the secret: ...%s...", what, text[max(0, i-200):min(len(text), i+100)])
			return
		}
	}
}

func TestAttributePrintsNoSecret(t *testing.T) {
	a := Attribute{Value: "hunter2", Sensitive: true}
	set := Attributes{"p": a}
	asJSON, err := json.Marshal(map[string]any{"one": a, "all": set})
	if err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	slog.New(slog.NewTextHandler(&log, nil)).Info("x", "one", a, "all", set)
	for _, text := range []string{fmt.Sprint(a, set), fmt.Sprintf("%+v %#v %s %q", set, set, a, a), string(asJSON), log.String()} {
		wantSecret(t, "it", text, "hunter2")
	}
	if plain := fmt.Sprint(Attributes{"p": {Value: "v"}}); plain != "map[p:v]" {
		t.Errorf("a plain one prints %q", plain)
	}
}

func TestScrubber(t *testing.T) {
	a := NewAttributes("", true, map[string]string{"long": "abcdefgh", "begins": "abcd", "short": "abc", "lines": "-----BEGIN-----\n  payload\n"})
	s := a.scrubber()
	for text, want := range map[string]string{
		"abcdefgh abcd abc": "(redacted) (redacted) abc",
		"key: payload":      "key: (redacted)",
		"nothing":           "nothing",
	} {
		if got := s.text(text); got != want {
			t.Errorf("%q becomes %q, want %q", text, got, want)
		}
	}
	cause := &conduit.Error{Code: conduit.Internal, Message: "abcdefgh"}
	err := s.err(fmt.Errorf("start: %w", cause))
	if strings.Contains(err.Error(), "abcd") || !errors.Is(err, cause) {
		t.Errorf("the error is %v", err)
	}
	var none *scrubber
	if none.text("x") != "x" || !errors.Is(none.err(cause), cause) || NewAttributes("", false, map[string]string{"a": "abcdefgh"}).scrubber() != nil {
		t.Error("where nothing is secret something is changed")
	}
}

func TestReadAttributes(t *testing.T) {
	path := filepath.Join(t.TempDir(), "attributes.yaml")
	write := func(text string, mode os.FileMode) {
		t.Helper()
		mustDo(t, os.RemoveAll(path))
		mustDo(t, os.WriteFile(path, []byte(text), 0o600))
		mustDo(t, os.Chmod(path, mode))
	}
	write("# secrets\npassword: \"hunter2, with: all\"\nport: 5432\nempty: \"\"\nlines: |\n  one\n  two\n", 0o600)
	got, err := ReadAttributes(path)
	want := map[string]string{"password": "hunter2, with: all", "port": "5432", "empty": "", "lines": "one\ntwo\n"}
	if err != nil || !maps.Equal(got, want) {
		t.Errorf("it reads %q, %v", got, err)
	}
	write("", 0o400)
	if got, err := ReadAttributes(path); err != nil || len(got) != 0 {
		t.Errorf("an empty file is read as %q, %v", got, err)
	}
	for what, bad := range map[string]struct {
		text string
		mode os.FileMode
		want string
	}{
		"others read it":   {"a: hunter2", 0o640, "chmod 600"},
		"not YAML":         {"a: \"hunter2", 0o600, "YAML"},
		"a list":           {"- hunter2", 0o600, "mapping"},
		"plain text":       {"hunter2", 0o600, "mapping"},
		"nested":           {"a:\n  b: hunter2", 0o600, ": a: is a mapping"},
		"twice":            {"a: hunter2\na: hunter2", 0o600, ":2: a: is set twice"},
		"no value":         {"a:", 0o600, "has no value"},
		"two documents":    {"a: hunter2\n---\nb: hunter2", 0o600, "one"},
		"a bad name":       {"\"a b\": hunter2", 0o600, "space"},
		"too long":         {"a: " + strings.Repeat("hunter2", 10000), 0o600, "bytes"},
		"a bad name's end": {"\"a=hunter\": hunter2", 0o600, "'='"},
	} {
		write(bad.text, bad.mode)
		_, err := ReadAttributes(path)
		if err == nil || !strings.Contains(err.Error(), bad.want) || !strings.Contains(err.Error(), path) {
			t.Errorf("%s: %v, want %q in it", what, err, bad.want)
			continue
		}
		wantSecret(t, what, err.Error(), "hunter2")
	}
	mustDo(t, os.Remove(path))
	if _, err := ReadAttributes(path); err == nil || !strings.Contains(err.Error(), "no such file") {
		t.Errorf("without the file: %v", err)
	}
	if _, err := ReadAttributes(filepath.Dir(path)); err == nil {
		t.Error("a directory is read")
	}
}

// What an element may declare of attributes.
func TestBadAttributeDeclarations(t *testing.T) {
	text := "x"
	for want, list := range map[string][]*conduitv1.AttributeDescription{
		"":              {{Name: "a", Default: &text}, {Name: "b", Sensitive: true}},
		"is empty":      {{}},
		"twice":         {{Name: "a"}, {Name: "a"}},
		"whoever has":   {{Name: "a", Sensitive: true, Default: &text}},
		"control chara": {{Name: "a\nb"}},
	} {
		d := &conduitv1.Description{Element: "e", Attributes: list}
		if why := descriptionFault(d); !strings.Contains(why, want) || (want == "") != (why == "") {
			t.Errorf("%v: %q, want %q", list, why, want)
		}
	}
}
