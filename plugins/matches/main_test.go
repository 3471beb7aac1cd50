package main

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// asMatches makes the test binary run the program's func main.
const asMatches = "MATCHES_TEST_RUN_MAIN"

func TestMain(m *testing.M) {
	if os.Getenv(asMatches) != "" {
		main()
	}
	goleak.VerifyTestMain(m)
}

// TestBinary: what the program says without a host, and that doc.go lists all of it.
func TestBinary(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, os.Args[0], "describe")
	cmd.Env = append(os.Environ(), asMatches+"=1")
	out, err := cmd.Output()
	if err != nil || !strings.Contains(string(out), `"name": "`+serviceName+`"`) {
		t.Errorf("describe says %v: %s", err, out)
	}
	doc, err := os.ReadFile("doc.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"Create", "Join", "Leave", "Watch", "End", "List", "Adopt", "units_per_player", "longest", "empty"} {
		if !bytes.Contains(doc, []byte("//	"+name+" ")) && !bytes.Contains(doc, []byte("//	"+name+"  ")) {
			t.Errorf("doc.go does not say what %s is", name)
		}
		if !bytes.Contains(out, []byte(`"name": "`+name+`"`)) {
			t.Errorf("describe does not name %s:\n%s", name, out)
		}
	}
}
