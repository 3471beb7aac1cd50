package integration

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"reflect"
	"strings"
	"syscall"
	"testing"
)

// getGateway asks the gateway with GET as a session, "" for none, and reads the answer.
func (i *instance) getGateway(path, session string) (status int, body string) {
	i.t.Helper()
	status, from := i.openGateway(i.t.Context(), path, session)
	defer from.Close()
	return status, readAll(i.t, from)
}

func (i *instance) openGateway(ctx context.Context, path, session string) (status int, body io.ReadCloser) {
	i.t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, i.gateway+path, nil)
	if err != nil {
		i.t.Fatal(err)
	}
	if session != "" {
		req.Header.Set("Authorization", "Bearer "+session)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		i.t.Fatal(err)
	}
	return res.StatusCode, res.Body
}

// still leaves out of rows what changes by itself.
func still(rows []map[string]any) []map[string]any {
	for _, r := range rows {
		for _, name := range []string{"uptime_ms", "since_ms", "heard_ms", "idle_ms", "bytes_in", "bytes_out", "packets_in", "packets_out", "rtt_us", "calls_in", "calls_out", "remote"} {
			delete(r, name)
		}
	}
	return rows
}

// The gateway tells what `ls -o json` prints, to those who may know.
func TestGatewayLists(t *testing.T) {
	t.Parallel()
	r := newRealm(t, "--host-remote-admin")
	root, ada := r.user("root", "superuser"), r.user("ada", "user")
	list := func(what, session string) []map[string]any {
		t.Helper()
		status, body := r.front.getGateway("/v1/"+what, session)
		var rows []map[string]any
		if err := json.Unmarshal([]byte(body), &rows); err != nil || status != http.StatusOK {
			t.Fatalf("%s: %d %s, %v", what, status, body, err)
		}
		return rows
	}
	for _, what := range []string{"instances", "deployments", "elements", "services", "methods"} {
		if got, want := still(list(what, root)), still(r.front.rows("ls", what)); !reflect.DeepEqual(got, want) || len(got) == 0 {
			t.Errorf("%s:\n got %v\nwant %v", what, got, want)
		}
	}
	// The document tells of the methods that can be called, here and elsewhere, with what
	// they take; and of none to strangers.
	document := func(session string) string {
		t.Helper()
		status, body := r.front.getGateway("/v1/openapi.json", session)
		if status != http.StatusOK || !strings.Contains(body, `"openapi":"3.1.0"`) {
			t.Fatalf("%d %s", status, body)
		}
		return body
	}
	for path, want := range map[string][2]bool{ // to a user, to root
		"/v1/call/front/echo/conduit.example.Echo/Upper":        {true, true},
		"/v1/call/echo/echo/conduit.example.Echo/Upper":         {true, true},
		"/v1/call/echo/echo/conduit.example.Echo/SuperuserOnly": {false, true},
	} {
		if user, all := strings.Contains(document(ada), `"`+path+`"`), strings.Contains(document(root), `"`+path+`"`); user != want[0] || all != want[1] {
			t.Errorf("%s: a user is told of it: %v, root: %v", path, user, all)
		}
	}
	if text := document(ada); !strings.Contains(text, `"echo.echo.`) || !strings.Contains(text, `"front.echo.`) {
		t.Error("the document has no schemas of one of the instances")
	}
	if strings.Contains(document(""), "/v1/call/") {
		t.Error("a stranger is told of methods")
	}
	if links := list("links", root); len(links) == 0 || links[0]["kind"] == nil {
		t.Errorf("links: %v", links)
	}
	// Who is no operator hears nothing of the machine, nor of methods beyond his level.
	for _, row := range list("elements", ada) {
		if row["pid"] != nil || row["file"] != nil || row["element"] != "echo" {
			t.Errorf("a user is told %v", row)
		}
	}
	for _, row := range list("methods", ada) {
		if row["remote"] != true || row["level"] == "superuser" || row["level"] == "system" {
			t.Errorf("a user is told of %v", row)
		}
	}
	for _, row := range list("methods?cluster=1", ada) {
		if row["level"] == "superuser" || row["level"] == "system" {
			t.Errorf("a user is told of %v", row)
		}
	}
	if all, mine := list("methods?cluster=1", ada), list("methods", ada); len(all) != 2*len(mine) {
		t.Errorf("%d methods in the cluster, %d here", len(all), len(mine))
	}
	if rows := list("instances", ada); len(rows) != 1 || rows[0]["name"] != "front" {
		t.Errorf("a user is told of %v", rows)
	}
	if rows := list("instances", ""); len(rows) != 1 || rows[0]["name"] != "front" || rows[0]["version"] != nil {
		t.Errorf("a stranger is told of %v", rows)
	}
	for path, session := range map[string]string{"deployments": "", "methods": "", "events": "", "links": ada} {
		if status, body := r.front.getGateway("/v1/"+path, session); status != http.StatusForbidden {
			t.Errorf("%s: %d %s", path, status, body)
		}
	}
	if status, body := r.front.getGateway("/v1/methods", strings.Repeat("0", 64)); status != http.StatusUnauthorized {
		t.Errorf("a session that is none: %d %s", status, body)
	}
}

// sse is one server-sent event.
type sse struct{ name, data string }

// events reads server-sent events until there are no more.
func events(ctx context.Context, i *instance) <-chan sse {
	i.t.Helper()
	status, body := i.openGateway(ctx, "/v1/events", "")
	if status != http.StatusOK {
		body.Close()
		i.t.Fatalf("events: %d", status)
	}
	c := make(chan sse, 100)
	go func() {
		defer close(c)
		defer body.Close()
		var e sse
		for s := bufio.NewScanner(body); s.Scan(); {
			name, value, _ := strings.Cut(s.Text(), ": ")
			switch name {
			case "event":
				e.name = value
			case "data":
				e.data = value
			case "":
				if e.name != "" {
					c <- e
				}
				e = sse{}
			}
		}
	}()
	return c
}

// TestGatewayEvents: what there is comes first, then what changes, and the stream ends in
// order when the instance does.
func TestGatewayEvents(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	w, front := prepare(t, nil), prepare(t, nil)
	w.name, front.name = "w0", "front"
	w.launch()
	w.waitReady()
	front.launch("--mode", "external", "--gateway-listen", "127.0.0.1:0", "--drain-delay", "0s", "--discovery-static", w.url)
	front.waitReady()
	here := events(ctx, front)
	until := func(what string, match func(e sse) bool) {
		t.Helper()
		for e := range here {
			if match(e) {
				return
			}
		}
		t.Fatalf("the events have ended before %s", what)
	}
	until("the worker was told of", func(e sse) bool {
		return e.name == "instance_added" && strings.Contains(e.data, `"name":"w0"`)
	})
	w.signal(syscall.SIGTERM)
	until("the worker went", func(e sse) bool {
		return (e.name == "instance_removed" || e.name == "instance_changed") && strings.Contains(e.data, `"name":"w0"`) && !strings.Contains(e.data, "present")
	})
	front.signal(syscall.SIGTERM)
	until("the end was told", func(e sse) bool { return e.name == "error" && strings.Contains(e.data, `"reason":"draining"`) })
	if code := front.wait(); code != 0 {
		t.Errorf("exit %d", code)
	}
	w.wait()
}

// TestGatewayEventsOfDeployments: an instance that hosts tells of its own deployments.
func TestGatewayEventsOfDeployments(t *testing.T) {
	t.Parallel()
	i := prepare(t, []string{built.echo})
	i.launch("--mode", "both", "--gateway-listen", "127.0.0.1:0")
	i.waitReady()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	all := events(ctx, i)
	var heard []string
	for e := range all {
		heard = append(heard, e.name)
		if len(heard) == 2 {
			if !strings.Contains(e.data, `"deployment":"echo"`) || !strings.Contains(e.data, `"state":"clean"`) {
				t.Errorf("%v", e)
			}
			i.ask("disable", "echo").want(t, 0, "")
		}
		if e.name == "deployment_unloaded" {
			break
		}
	}
	if strings.Join(heard, " ") != "element_loaded deployment_loaded deployment_unloaded" {
		t.Errorf("heard %q", heard)
	}
}
