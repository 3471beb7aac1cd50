package registry

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/elemental-conduit/conduit/address"
	conduitv1 "github.com/elemental-conduit/conduit/proto/conduit/v1"
)

// A peer whose every word is of another digest is asked now and then, and not as
// often as it speaks.
func TestDigestsWithoutEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t, Options{})
		a := w.host("a", 10, "app")
		w.list("a")
		const seconds = 20
		for n := range seconds * 100 {
			a.change(func(i *conduitv1.InstanceInfo) { i.Digest = fmt.Append(nil, n) })
			a.link().status()
			time.Sleep(10 * time.Millisecond)
		}
		synctest.Wait()
		a.mu.Lock()
		asked := a.asked
		a.mu.Unlock()
		if most := askBurst + seconds*int(time.Second/askPause) + 2; asked > most || asked < seconds {
			t.Errorf("it was asked %d times in %d s, want at most %d", asked, seconds, most)
		}
		// The last word is heard nevertheless.
		a.change(func(i *conduitv1.InstanceInfo) {
			i.Deployments = append(i.Deployments, deploymentOf("new", elementOf("new", "ready")))
		})
		a.link().status()
		time.Sleep(2 * askPause)
		synctest.Wait()
		check(t, "what it has now", w.picks(in("new"), Query{}), "a")
		check(t, "peers", w.peers(), "a alive")
	})
}

// What is beyond any instance is not kept, and who says it is no peer.
func TestAnswersBeyondMeasure(t *testing.T) {
	element := func(services, methods int) *conduitv1.ElementInfo {
		e := elementOf("e", "ready")
		e.Services = nil
		for s := range services {
			d := &conduitv1.ServiceDescription{Name: fmt.Sprint("S", s)}
			for m := range methods {
				d.Methods = append(d.Methods, &conduitv1.MethodDescription{Name: fmt.Sprint("M", m)})
			}
			e.Services = append(e.Services, d)
		}
		return e
	}
	for _, test := range []struct {
		name string
		f    func(*conduitv1.InstanceInfo)
		want string
	}{
		{"a digest", func(i *conduitv1.InstanceInfo) { i.Digest = make([]byte, maxDigest+1) }, "its digest has 65 bytes"},
		{"elements", func(i *conduitv1.InstanceInfo) {
			i.Deployments = []*conduitv1.DeploymentInfo{{Elements: make([]*conduitv1.ElementInfo, mostHosted)}}
		}, "deployments, elements and services"},
		{"deployments", func(i *conduitv1.InstanceInfo) {
			i.Deployments = make([]*conduitv1.DeploymentInfo, mostHosted+1)
		}, "deployments, elements and services"},
		{"services", func(i *conduitv1.InstanceInfo) {
			i.Deployments = []*conduitv1.DeploymentInfo{deploymentOf("d", element(mostHosted, 0))}
		}, "deployments, elements and services"},
		{"methods", func(i *conduitv1.InstanceInfo) {
			i.Deployments = []*conduitv1.DeploymentInfo{deploymentOf("d", element(1025, 256))}
		}, "methods"},
	} {
		t.Run(test.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := newWorld(t, Options{})
				a, _ := w.host("a", 10, "app"), w.host("b", 10, "app")
				w.list("b")
				a.info.Digest = []byte("d")
				test.f(a.info)
				w.list("a", "b")
				check(t, "peers", w.peers(), "? unreachable, b alive")
				if got := w.r.Peers()[0].Reason; !strings.Contains(got, test.want) {
					t.Errorf("the reason is %q, want %q in it", got, test.want)
				}
			})
		})
	}
}

// Texts of a peer are cut before they are kept.
func TestLongTexts(t *testing.T) {
	info := &conduitv1.InstanceInfo{Name: strings.Repeat("ä", 1000), Mode: strings.Repeat("m", 1<<20), Version: "1.0", Digest: make([]byte, maxDigest)}
	if err := checkInfo(info); err != nil {
		t.Fatal(err)
	}
	if info.Name != strings.Repeat("ä", maxText/2)+"..." || info.Mode != strings.Repeat("m", maxText)+"..." || info.Version != "1.0" {
		t.Errorf("%d %d %q", len(info.Name), len(info.Mode), info.Version)
	}
}

// Of as many elements of one name as there may be each is found at its ordinal.
func TestNamesakes(t *testing.T) {
	const n = mostHosted/2 - 1
	d := &conduitv1.DeploymentInfo{Id: address.UniqueDeploymentID("d").String()}
	for i := range n {
		d.Elements = append(d.Elements, &conduitv1.ElementInfo{
			Name: "e", State: "starting", Services: []*conduitv1.ServiceDescription{{Name: fmt.Sprint("S", i)}},
		})
	}
	d.Elements[1].State = "ready"
	info := &conduitv1.InstanceInfo{Deployments: []*conduitv1.DeploymentInfo{d}, Digest: []byte("d")}
	if err := checkInfo(info); err != nil {
		t.Fatal(err)
	}
	c := newCatalog(info, &shapes{})
	for i, want := range []int32{0, -1, 2, 3} {
		k := keyOf(address.MustParse(fmt.Sprintf("*://*/e/S%d", i)))
		k.element = ""
		if o := c.at(k); o == nil || o.ordinal != want {
			t.Errorf("S%d is found at %v, want ordinal %d", i, o, want)
		}
	}
}

// Descriptions that differ each time do not fill the memory.
func TestShapesAreBounded(t *testing.T) {
	s := shapes{}
	for i := range 3 * maxShapes / maxShape {
		s.of(&conduitv1.ServiceDescription{Name: fmt.Sprint(i, strings.Repeat("x", maxShape-64))})
		if s.size > maxShapes {
			t.Fatalf("%d bytes are kept after %d", s.size, i)
		}
	}
	had := s.size
	huge := &conduitv1.ServiceDescription{Name: strings.Repeat("x", maxShape+1), Methods: []*conduitv1.MethodDescription{{Name: "M"}}}
	if m := s.of(huge); m["M"] == nil || s.size != had {
		t.Errorf("%v, %d bytes are kept instead of %d", m, s.size, had)
	}
	kept := 0
	for text := range s.known {
		kept += len(text)
	}
	if kept != s.size {
		t.Errorf("%d bytes are kept, %d counted", kept, s.size)
	}
}
