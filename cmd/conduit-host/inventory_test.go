package main

import (
	"testing"
	"time"

	"github.com/elemental-conduit/conduit/host"
)

// TestElementInfo: what an element warned of when it was configured is the reason that
// `ls elements` shows, behind that of its state if there is one.
func TestElementInfo(t *testing.T) {
	warned := host.ElementStatus{Name: "e", State: host.Ready, Warnings: []string{"the disk is slow", "the key is old"}, Calls: 2, Claims: 3}
	info := elementInfo(warned, time.Now())
	if info.GetReason() != "the disk is slow; the key is old" || info.GetInFlight() != 2 || info.GetClaims() != 3 {
		t.Errorf("got %v", info)
	}
	warned.State, warned.Reason = host.Degraded, "half of it is gone"
	if info := elementInfo(warned, time.Now()); info.GetReason() != "half of it is gone; the disk is slow; the key is old" {
		t.Errorf("got %v", info)
	}
	warned.Reason = "the disk is slow" // a warning may be the reason
	if info := elementInfo(warned, time.Now()); info.GetReason() != "the disk is slow; the key is old" {
		t.Errorf("got %v", info)
	}
}
