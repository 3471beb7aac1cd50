package frame

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"encoding/json"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"testing"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	conduitv1 "github.com/elemental-conduit/conduit/proto/conduit/v1"
)

var update = flag.Bool("update", false, "write proto/testdata/frames.jsonl anew")

// vector is one line of the golden file, described in proto/testdata/README.md.
type vector struct {
	Name     string            `json:"name"`
	About    string            `json:"about"`
	Hex      string            `json:"hex"`
	Frames   []json.RawMessage `json:"frames"`
	Sizes    []int             `json:"sizes"`
	Error    string            `json:"error"`
	Offset   int               `json:"offset"`
	Stricter bool              `json:"stricter"`
	// Canonical: encoding the frames gives the very bytes.
	Canonical bool `json:"canonical"`
}

func goldenFile() string { return filepath.Join("..", "..", "proto", "testdata", "frames.jsonl") }

// TestGolden holds this parser and the generated code to the published vectors,
// and the vectors to the cases in this package.
func TestGolden(t *testing.T) {
	want := makeVectors(t)
	if *update {
		if err := os.MkdirAll(filepath.Dir(goldenFile()), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(goldenFile(), want, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	have, err := os.ReadFile(goldenFile())
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(have, want) {
		t.Errorf("%s is not what this package makes; look at why, then run go test ./internal/frame -run TestGolden -update", goldenFile())
	}

	n := 0
	lines := bufio.NewScanner(bytes.NewReader(have))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var v vector
		dec := json.NewDecoder(bytes.NewReader(lines.Bytes()))
		dec.DisallowUnknownFields()
		if err := dec.Decode(&v); err != nil {
			t.Fatalf("line %d: %v", n+1, err)
		}
		n++
		t.Run(v.Name, func(t *testing.T) { checkVector(t, &v) })
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	if wantN := len(goodCases()) + len(faultCases()); n != wantN {
		t.Errorf("%d vectors, want %d", n, wantN)
	}
}

func checkVector(t *testing.T, v *vector) {
	t.Helper()
	packet, err := hex.DecodeString(v.Hex)
	if err != nil {
		t.Fatal(err)
	}
	var want []*conduitv1.Frame
	for _, raw := range v.Frames {
		f := &conduitv1.Frame{}
		if err := protojson.Unmarshal(raw, f); err != nil {
			t.Fatal(err)
		}
		want = append(want, f)
	}

	got, sizes, cold, err := parseAll(packet)
	if cold != nil {
		t.Fatal(cold)
	}
	equalFrames(t, got, want)
	if len(sizes) != len(v.Sizes) {
		t.Fatalf("%d sizes, want %d", len(sizes), len(v.Sizes))
	}
	for i := range sizes {
		if sizes[i] != v.Sizes[i] {
			t.Errorf("frame %d: size %d, want %d", i, sizes[i], v.Sizes[i])
		}
	}

	generated, gerr := generatedAll(packet)
	if v.Error == "" {
		if err != nil {
			t.Fatal(err)
		}
		if gerr != nil {
			t.Fatalf("generated code: %v", gerr)
		}
		equalFrames(t, generated, want)
		if v.Canonical {
			again, err := proto.MarshalOptions{Deterministic: true}.Marshal(&conduitv1.Packet{Frames: want})
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(again, packet) {
				t.Errorf("encoding again gives\n%x, want\n%x", again, packet)
			}
		}
		return
	}
	var fe *Error
	if !errors.As(err, &fe) || fe.What != v.Error || fe.Offset != v.Offset {
		t.Errorf("error %v, want %s at byte %d", err, v.Error, v.Offset)
	}
	if stricter(v.Error) != v.Stricter {
		t.Errorf("stricter is %t for %q", v.Stricter, v.Error)
	}
	if (gerr == nil) != v.Stricter {
		t.Errorf("generated code: error %v, stricter %t", gerr, v.Stricter)
	}
}

// makeVectors gives the golden file's content. The bytes of canonical cases come
// from the generated code, never from this package's own encoder.
func makeVectors(t *testing.T) []byte {
	t.Helper()
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	write := func(v vector, frames []*conduitv1.Frame) {
		v.Frames, v.Sizes = []json.RawMessage{}, append([]int{}, v.Sizes...)
		for _, f := range frames {
			raw, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(f)
			if err != nil {
				t.Fatal(err)
			}
			// protojson varies its white space on purpose.
			var compact bytes.Buffer
			if err := json.Compact(&compact, raw); err != nil {
				t.Fatal(err)
			}
			v.Frames = append(v.Frames, compact.Bytes())
		}
		if err := enc.Encode(v); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range goodCases() {
		packet, frames := c.packet, c.frames
		if packet == nil {
			var err error
			packet, err = proto.MarshalOptions{Deterministic: true}.Marshal(&conduitv1.Packet{Frames: frames})
			if err != nil {
				t.Fatal(err)
			}
		}
		_, sizes, _, err := parseAll(packet)
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		write(vector{Name: c.name, About: c.about, Hex: hex.EncodeToString(packet), Sizes: sizes, Canonical: c.packet == nil}, frames)
	}
	for _, c := range faultCases() {
		write(vector{
			Name: c.name, About: c.about, Hex: hex.EncodeToString(c.packet),
			Sizes: c.sizes, Error: c.what, Offset: c.offset, Stricter: stricter(c.what),
		}, c.frames)
	}
	return out.Bytes()
}
