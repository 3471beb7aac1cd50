package integration

import (
	"bytes"
	"context"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// sight is something that others than the holder of a secret can see.
type sight struct {
	what string
	text []byte
}

// sights collects what can be seen of a realm while its instances run: what they tell of
// themselves, their processes, and the files of the store.
func (r *realm) sights() (all []sight) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.t.Context()), patience)
	defer cancel()
	see := func(what, text, must string) {
		if !strings.Contains(text, must) {
			r.t.Errorf("%s is not what was to be looked at: there is no %q in %.300s", what, must, text)
		}
		all = append(all, sight{what, []byte(text)})
	}
	for _, i := range []*instance{r.worker, r.front} {
		select {
		case <-i.exited:
			continue // its log is left
		default:
		}
		for path, must := range map[string]string{
			"/metrics": "conduit_auth_checks_total", "/readyz": "", "/debug/pprof/goroutine?debug=2": "goroutine ", "/debug/pprof/cmdline": "serve",
		} {
			see(i.name+" at "+path, r.get(ctx, i.ops+path), must)
		}
		for _, what := range []string{"instances", "deployments", "elements", "services", "methods", "links"} {
			got := i.ask("ls", what, "-o", "json")
			see(i.name+", ls "+what, got.out+got.err, "[")
		}
		got := i.ask("explain", echoAddr, "WhoAmI", "-o", "json")
		see(i.name+", explain", got.out+got.err, "")
		processes := processesBelow(i.cmd.Process.Pid)
		if len(processes) < 4 { // two of the instance itself, and of an element
			r.t.Errorf("%s: the processes are not found: %d files", i.name, len(processes))
		}
		all = append(all, processes...)
	}
	for _, args := range [][]string{{"ls", "sessions", "-o", "json"}, {"session", "ls"}, {"user", "ls", "-o", "json"}} {
		got := conduitHost(r.t, append(args, "--auth-store", r.store)...)
		see(strings.Join(args, " "), got.out+got.err, "instance:")
	}
	store := strings.TrimPrefix(r.store, "bolt:")
	for _, path := range []string{store, store + ".audit"} {
		text, err := os.ReadFile(path)
		if err != nil {
			r.t.Error(err)
		}
		all = append(all, sight{path, text})
	}
	return append(all, r.refusals(ctx)...)
}

func (r *realm) get(ctx context.Context, url string) string {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		r.t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		r.t.Error(err)
		return ""
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		r.t.Error(err)
	}
	return string(text)
}

// refusals are the answers to who shows a secret in a wrong way, at each door of HTTP.
func (r *realm) refusals(ctx context.Context) (all []sight) {
	urls := []string{r.front.gateway + "/v1/call/echo/echo/conduit.example.Echo/WhoAmI", r.front.gateway + "/v1/sessions/current", "http" + strings.TrimPrefix(r.worker.url, "ws")}
	for _, s := range r.secrets[:min(len(r.secrets), 4)] {
		for _, header := range [][2]string{{"Authorization", "Bearer " + s + " more"}, {"Authorization", "Basic " + s}, {"Elements-SessionSecret", s + s}, {"Authorization", "Bearer x" + s[1:]}} {
			for k, url := range urls {
				method := []string{http.MethodPost, http.MethodDelete, http.MethodGet}[k]
				req, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader("null"))
				if err != nil {
					r.t.Fatal(err)
				}
				req.Header.Set("Content-Type", "application/json")
				req.Header.Set(header[0], header[1])
				resp, err := http.DefaultClient.Do(req)
				if err != nil {
					continue // the test has ended the instance
				}
				text, _ := io.ReadAll(resp.Body)
				resp.Body.Close()
				if resp.StatusCode < 400 {
					r.t.Errorf("%s with a bad %s: %d", url, header[0], resp.StatusCode)
				}
				all = append(all, sight{fmt.Sprint("the answer ", resp.StatusCode, " of ", url), fmt.Append(text, resp.Header)})
			}
		}
	}
	return all
}

// processesBelow are the command lines and environments of a process and of those that
// come from it.
func processesBelow(pid int) (all []sight) {
	parents := map[int]int{}
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, path := range stats {
		text, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended
		}
		fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
		child, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		if len(fields) > 1 {
			parents[child], _ = strconv.Atoi(fields[1])
		}
	}
	below := func(p int) bool {
		for p > 1 && p != pid {
			p = parents[p]
		}
		return p == pid
	}
	for child := range parents {
		if !below(child) {
			continue
		}
		for _, file := range []string{"cmdline", "environ"} {
			path := filepath.Join("/proc", strconv.Itoa(child), file)
			if text, err := os.ReadFile(path); err == nil {
				all = append(all, sight{path, text})
			}
		}
	}
	return all
}

// shows reports whether something shows a secret, as it is written or as the bytes that
// it stands for.
func (s sight) shows(secret string) bool {
	if bytes.Contains(bytes.ToLower(s.text), []byte(strings.ToLower(secret))) {
		return true
	}
	raw, err := hex.DecodeString(secret)
	return err == nil && len(raw) > 0 && bytes.Contains(s.text, raw)
}
