package integration

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"

	"github.com/elemental-conduit/conduit"
)

// An element hears of a deployment that comes, is replaced and goes while the instance
// runs.
func TestEventsReachOtherElements(t *testing.T) {
	t.Parallel()
	i := start(t, []string{built.echo})
	c, ctx := i.dial()
	binary, err := os.ReadFile(built.echo)
	if err != nil {
		t.Fatal(err)
	}
	put := func(extra string) {
		t.Helper()
		path := filepath.Join(i.dir, "new")
		if err := os.WriteFile(path, append(slices.Clip(binary), extra...), 0o700); err != nil { //nolint:gosec // a plugin is executable
			t.Fatal(err)
		}
		if err := os.Rename(path, filepath.Join(i.deployments, "other")); err != nil {
			t.Fatal(err)
		}
	}
	type event struct {
		Name, Deployment, Element, State string
		Sequence, Generation             uint64
		Present                          bool
	}
	next := map[string]func(){
		"deployment_loaded echo 1 clean":  func() { put("") },
		"deployment_loaded other 1 clean": func() { put("another version") },
		"deployment_loaded other 2 clean": func() {
			if err := os.Remove(filepath.Join(i.deployments, "other")); err != nil {
				t.Error(err)
			}
		},
	}
	var heard []string
	for e, err := range conduit.Stream[event](ctx, c.At(echoAddr), "Events", "") {
		if err != nil {
			t.Fatalf("after %q: %v", heard, err)
		}
		text := e.Name + " " + e.Deployment + " " + strconv.FormatUint(e.Generation, 10) + " " + e.State
		heard = append(heard, text)
		if e.Present != (e.Deployment == "echo") {
			t.Errorf("%+v is part of the present state: %v", e, e.Present)
		}
		if do := next[text]; do != nil {
			do()
		}
		if e.Name == "deployment_unloaded" {
			break
		}
	}
	if want := []string{
		"element_loaded echo 1 ready", "deployment_loaded echo 1 clean", "element_loaded other 1 ready", "deployment_loaded other 1 clean",
		"element_loaded other 2 ready", "deployment_loaded other 2 clean", "deployment_unloaded other 2 ",
	}; !slices.Equal(heard, want) {
		t.Errorf("heard %q, want %q", heard, want)
	}
}
