package pluginapi

import (
	"bytes"
	"context"
	"encoding/json"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/protobuf/encoding/protojson"

	conduitv1 "github.com/elemental-conduit/conduit/proto/conduit/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// sample is an element with every option in it.
func sample() Element {
	s := NewService("example.Sample", Named("one"))
	Handle(s, "Plain", func(context.Context, []byte) (string, error) { return "", nil })
	HandleStream(s, "Full", func(context.Context, struct{}, Sender[int]) error { return nil },
		Remote(), MinLevel(Superuser), Units(7), Idempotent(), Deprecated("use Plain"), Timeout(1500*time.Millisecond))
	HandleUpload(s, "Up", func(context.Context, Receiver[int]) (struct{}, error) { return struct{}{}, nil })
	HandleDuplex(s, "Both", func(context.Context, Receiver[int], Sender[int]) error { return nil })
	return Element{Name: "sample", Version: "1.2.3", Services: []*Service{s}, Exclusive: true}
}

// TestUsage: run by hand, a plugin shows a call that would be one.
func TestUsage(t *testing.T) {
	one := func(add func(s *Service)) Element {
		s := NewService("example.Sample")
		Handle(s, "Hidden", func(context.Context, int) (int, error) { return 0, nil })
		add(s)
		return Element{Name: "sample", Services: []*Service{s}}
	}
	for want, e := range map[string]Element{
		`call '*://file/sample/example.Sample#one' Full`: sample(),
		`call '*://file/sample/example.Sample' Sum '{"some":"json"}'`: one(func(s *Service) {
			Handle(s, "Sum", func(context.Context, []int) (int, error) { return 0, nil }, Remote())
		}),
		`call '*://file/sample/example.Sample' Put @FILE`: one(func(s *Service) {
			Handle(s, "Put", func(context.Context, []byte) (struct{}, error) { return struct{}{}, nil }, Remote())
		}),
		`call '*://file/sample/SERVICE' METHOD '{"some":"json"}'`: one(func(*Service) {}),
	} {
		var stdout, stderr bytes.Buffer
		if code := run(e, []string{"/some/where/file"}, false, &stdout, &stderr); code != exitUsage || stdout.Len() > 0 || !strings.Contains(stderr.String(), "conduit-host "+want+"\n") || strings.Contains(stderr.String(), "auth-mode") {
			t.Errorf("exit %d, want %s in\n%s", code, want, &stderr)
		}
	}
}

func TestDescribe(t *testing.T) {
	var stdout, stderr bytes.Buffer
	if code := run(sample(), []string{"/some/where/sample", "describe"}, false, &stdout, &stderr); code != 0 || stderr.Len() > 0 {
		t.Fatalf("exit %d, stderr %s", code, &stderr)
	}
	if !json.Valid(stdout.Bytes()) || !strings.HasSuffix(stdout.String(), "}\n") {
		t.Errorf("not JSON with a line's end:\n%s", &stdout)
	}
	var d conduitv1.Description
	if err := protojson.Unmarshal(stdout.Bytes(), &d); err != nil {
		t.Fatal(err)
	}
	if d.GetElement() != "sample" || d.GetVersion() != "1.2.3" || !d.GetExclusive() || d.GetMaxMessage() != 10<<20 || d.GetApi() == "" {
		t.Errorf("described as %v", &d)
	}
	s := d.GetServices()[0]
	if s.GetName() != "example.Sample#one" || len(s.GetMethods()) != 4 {
		t.Fatalf("the service is %v", s)
	}
	plain, full := s.GetMethods()[0], s.GetMethods()[1]
	if plain.GetRemote() || plain.GetMinLevel() != conduitv1.Level_LEVEL_USER || plain.GetRequestType() != "bytes" || plain.GetReplyType() != "string" ||
		strings.Join(plain.GetContentTypes(), " ") != "application/octet-stream application/json" {
		t.Errorf("Plain is %v", plain)
	}
	if !full.GetRemote() || full.GetShape() != conduitv1.Shape_SHAPE_SERVER_STREAM || full.GetMinLevel() != conduitv1.Level_LEVEL_SUPERUSER ||
		full.GetUnits() != 7 || !full.GetIdempotent() || full.GetDeprecated() != "use Plain" || full.GetTimeoutMicros() != 1_500_000 {
		t.Errorf("Full is %v", full)
	}
	for i, shape := range []conduitv1.Shape{0, 1, 2, 3} {
		if got := s.GetMethods()[i].GetShape(); got != shape {
			t.Errorf("method %d has shape %v, want %v", i, got, shape)
		}
	}
}

func TestRunByHand(t *testing.T) {
	for _, tt := range []struct {
		args []string
		code int
	}{
		{nil, 64},
		{[]string{"nonsense"}, 64},
		{[]string{"describe", "more"}, 64},
		{[]string{"--help"}, 0},
	} {
		var stdout, stderr bytes.Buffer
		code := run(sample(), append([]string{"./sample"}, tt.args...), false, &stdout, &stderr)
		text := stdout.String() + stderr.String()
		if code != tt.code || !strings.Contains(text, "deployments") || !strings.Contains(text, "./sample describe") {
			t.Errorf("%v: exit %d, want %d:\n%s", tt.args, code, tt.code, text)
		}
		if (stdout.Len() > 0) != (code == 0) {
			t.Errorf("%v: the explanation went to the wrong stream", tt.args)
		}
	}
}

// TestMistakesAreReported: all of them at once, in every mode, and none panics.
func TestMistakesAreReported(t *testing.T) {
	ok := func(context.Context, int) (int, error) { return 0, nil }
	s := NewService("has space")
	Handle(s, "Twice", ok)
	Handle(s, "Twice", ok)
	Handle(s, "", ok)
	Handle(s, "9lives", ok)
	Handle[int, int](s, "NoHandler", nil)
	Handle(s, "Options", ok, MinLevel(9), Timeout(-1), Deprecated(""))
	Handle(s, "Channel", func(context.Context, chan int) (func(), error) { return nil, nil })
	bad := Element{
		Name:     "a/b",
		Services: []*Service{s, nil, NewService("x#y"), NewService("fine", Named("")), NewService("same"), NewService("same")},
	}
	for _, launched := range []bool{false, true} {
		for _, args := range [][]string{{"bad"}, {"bad", "describe"}} {
			var stdout, stderr bytes.Buffer
			if code := run(bad, args, launched, &stdout, &stderr); code != 64 || stdout.Len() > 0 {
				t.Errorf("%v: exit %d, stdout %q", args, code, &stdout)
			}
			for _, part := range []string{
				`"a/b"`, `"has space"`, `"Twice": it is there twice`, `its name is empty`, `"9lives"`, `handler is nil`, `MinLevel(9)`,
				`Timeout(-1ns)`, `Deprecated`, `chan int`, `func()`, `Services[1] is nil`, `"x#y"`, `Named has an empty name`, `"same" is there twice`,
			} {
				if !strings.Contains(stderr.String(), part) {
					t.Errorf("%v: %q is missing in:\n%s", args, part, &stderr)
				}
			}
		}
	}
	if err := (Element{}).Check(); err == nil || !strings.Contains(err.Error(), "no name") {
		t.Errorf("an element without a name: %v", err)
	}
	if err := sample().Check(); err != nil {
		t.Errorf("the sample has mistakes: %v", err)
	}
}

func TestLogLevel(t *testing.T) {
	for name, want := range map[string]int{"": 0, "nonsense": 0, "trace": -8, "DEBUG": -4, "info": 0, "warn": 4, "Error": 8, "off": 1008} {
		if got := logLevel(name); int(got) != want {
			t.Errorf("%q is level %d, want %d", name, got, want)
		}
	}
}
