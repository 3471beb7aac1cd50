package pluginapi

import (
	"context"
	"testing"
)

func TestTraceOutsideOfACall(t *testing.T) {
	if parent, state := TraceFrom(context.Background()); parent != "" || state != "" {
		t.Errorf("%q, %q", parent, state)
	}
}
