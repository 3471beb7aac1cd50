package main

import (
	"strings"
	"testing"
	"time"

	"github.com/elemental-conduit/conduit/host"
	conduitv1 "github.com/elemental-conduit/conduit/proto/conduit/v1"
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

	swapped := host.ElementStatus{Name: "e", State: host.Ready, Warnings: []string{"it waits"}, Old: []host.OldGeneration{{Pid: 7, Calls: 2}, {Pid: 8, Claims: 3}}}
	if info := elementInfo(swapped, time.Now()); info.GetReason() != "it waits; 2 old generations still finish 2 calls and hold 3 claims (pid 7, 8)" {
		t.Errorf("got %v", info)
	}
	swapped.Warnings, swapped.Old = nil, []host.OldGeneration{{Pid: 7, Calls: 1}}
	if info := elementInfo(swapped, time.Now()); info.GetReason() != "1 old generation still finishes 1 call and holds 0 claims (pid 7)" {
		t.Errorf("got %v", info)
	}
}

// TestInventoryFits: a list of ever so many elements that export ever so much can be sent.
func TestInventoryFits(t *testing.T) {
	size, cut := 0, 0
	for range 200 {
		x := &conduitv1.ElementInfo{Name: "e", Services: []*conduitv1.ServiceDescription{{Name: strings.Repeat("s", 60<<10)}}}
		if size = fit(x, size); x.GetServices() == nil {
			cut++
			if !strings.Contains(x.GetReason(), "left out") {
				t.Errorf("nothing is said of it: %v", x)
			}
		}
	}
	if size > maxInventory+200*256 || cut == 0 || cut > 140 {
		t.Errorf("%d bytes, %d of 200 were cut", size, cut)
	}
}
