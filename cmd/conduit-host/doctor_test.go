package main

import (
	"encoding/json"
	"net"
	"os"
	"strings"
	"testing"

	"github.com/elemental-conduit/conduit/discovery/discoverytest"
	conduitv1 "github.com/elemental-conduit/conduit/proto/conduit/v1"
)

// TestDoctorLooksAround: what a story cannot have, which are taken ports and a DNS.
func TestDoctorLooksAround(t *testing.T) {
	dir := t.TempDir()
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	dns := discoverytest.NewDNS(t)
	dns.On("peers.test.", "SRV", discoverytest.Reply{Answer: discoverytest.SRV("peers.test.", 60, "one.test.:7400", "two.test.:7400")})
	dns.On("one.test.", "A", discoverytest.Reply{Answer: []string{"one.test. 60 IN A 127.0.0.1"}})
	dns.On("silent.test.", "SRV", discoverytest.Reply{Rcode: 2})
	doctor := func(want int, flags ...string) string {
		t.Helper()
		var out, errs strings.Builder
		a := &app{stdin: strings.NewReader(""), stdout: &out, stderr: &errs, dial: dialPeers}
		args := append([]string{
			"doctor", "-o", "json", "--mode", "worker", "--name", "d", "--data-dir", dir, "--cluster-insecure",
			"--cluster-listen", "127.0.0.1:0", "--ops-listen", "127.0.0.1:0",
		}, flags...)
		if code := a.run(args); code != want {
			t.Errorf("%v: exit %d, want %d: %s%s", flags, code, want, &out, &errs)
		}
		var all findings
		if err := json.Unmarshal([]byte(out.String()), &all); err != nil {
			t.Fatal(err)
		}
		var b strings.Builder
		for _, f := range all {
			b.WriteString(f.Status + " " + f.Check + " " + f.Text + "\n")
		}
		return b.String()
	}
	wants := func(got string, parts ...string) {
		t.Helper()
		for _, part := range parts {
			if !strings.Contains(got, part) {
				t.Errorf("no %q in\n%s", part, got)
			}
		}
	}
	// A directory that is open to others is none of this user's alone.
	if err := os.Chmod(dir, 0o700); err != nil { //nolint:gosec // a directory
		t.Fatal(err)
	}
	wants(doctor(1, "--cluster-listen", taken.Addr().String()), "problem ports cluster.listen: "+taken.Addr().String()+" is in use by another process; ")
	wants(doctor(1, "--discovery-srv-name", "peers.test", "--discovery-srv-servers", dns.Addr()),
		"ok discovery peers.test lists ws://one.test:7400/cluster/v1\n", "problem discovery two.test")
	wants(doctor(1, "--discovery-srv-name", "silent.test", "--discovery-srv-servers", dns.Addr()), "problem discovery ")
	wants(doctor(1, "--discovery-srv-name", "nothing.test", "--discovery-srv-servers", dns.Addr()), "problem discovery nothing.test.: there is no such name")
	wants(doctor(0), "ok discovery no discovery.srv.name")
	open := t.TempDir()
	if err := os.Chmod(open, 0o755); err != nil { //nolint:gosec // that is what is wrong
		t.Fatal(err)
	}
	wants(doctor(1, "--run-dir", open), "problem directories run_dir: "+open+" is open to other users (mode 0755); close it with `chmod 700")
}

func TestDoctorOnFiles(t *testing.T) {
	for limit, want := range map[uint64]string{4607: findingWarning, 4608: findingOK} {
		var f findings
		if judgeFiles(&f, limit, 4096); len(f) != 1 || f[0].Status != want {
			t.Errorf("%d: %+v", limit, f)
		}
	}
}

func TestDoctorOnPeers(t *testing.T) {
	for state, want := range map[string]string{"alive": findingOK, "draining": findingOK, "connecting": findingOK, "self": findingOK, "unreachable": findingProblem, "conflict": findingProblem} {
		var f findings
		examinePeer(&f, &conduitv1.PeerInfo{State: state, Reason: "because", Urls: []string{"ws://x:1/cluster/v1"}, Info: &conduitv1.InstanceInfo{Name: "x"}})
		if len(f) != 1 || f[0].Status != want || !strings.Contains(f[0].Text, "x (ws://x:1/cluster/v1)") {
			t.Errorf("%s: %+v", state, f)
		}
	}
}
