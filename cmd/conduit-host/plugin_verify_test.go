package main

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/elemental-conduit/conduit"
)

// stopper is a standard output that ends a context when it is given a text.
type stopper struct {
	strings.Builder

	at   string
	stop context.CancelFunc
}

func (s *stopper) Write(p []byte) (int, error) {
	if strings.Contains(string(p), s.at) {
		s.stop()
	}
	return s.Builder.Write(p)
}

// Each check is shown as it is known, and one that is interrupted is not shown as failed.
func TestVerifyIsInterrupted(t *testing.T) {
	for _, format := range []string{formatTable, formatJSON} {
		ctx, stop := context.WithTimeout(t.Context(), time.Minute)
		out := &stopper{at: " describe ", stop: stop}
		a := &app{stdout: out, stderr: &strings.Builder{}, output: format}
		if format == formatJSON {
			stop()
		}
		err := a.verify(ctx, echoBinary, verifyOptions{full: true})
		if e := conduit.AsError(err, conduit.NotSent); err == nil || e.Code != conduit.Canceled {
			t.Errorf("%s: %v", format, err)
		}
		stop()
		got := out.String()
		want := []string{"FILE ", " describe ", " ok "}
		if format == formatJSON {
			want = []string{`"unfinished":true`}
		}
		for _, part := range want {
			if !strings.Contains(got, part) {
				t.Errorf("%s: no %q in\n%s", format, part, got)
			}
		}
		for _, part := range []string{"FAILED", " starts ", `"ok":false`} {
			if strings.Contains(got, part) {
				t.Errorf("%s: %q in\n%s", format, part, got)
			}
		}
	}
}
