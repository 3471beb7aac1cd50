package transport

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gorilla/websocket"
)

// Headers that say more about a refusal than a status can. They are part of the
// contract with other implementations: docs/protocol.md lists them.
const (
	// HeaderReason is the reason of a 503, such as "draining", or of a 401, such as
	// "session_expired".
	HeaderReason = "Conduit-Reason"
	// HeaderAuthStore is the id of the instance's auth store, with every 401.
	HeaderAuthStore = "Conduit-Auth-Store"
)

// refusal is an upgrade that is refused.
type refusal struct {
	status int
	// text is one line for people; it never quotes what might hold a secret.
	text   string
	header map[string]string
}

func refuse(status int, header map[string]string, format string, args ...any) *refusal {
	return &refusal{status: status, text: fmt.Sprintf(format, args...), header: header}
}

// write answers the request with the refusal.
func (f *refusal) write(w http.ResponseWriter) {
	for k, v := range f.header {
		w.Header().Set(k, v)
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(f.status)
	_, _ = w.Write([]byte(f.text + "\n")) // the requester is gone: nothing to do
}

// proxyHint is what to do when a proxy ate the upgrade, by far the most
// frequent cause of a plain GET.
const proxyHint = "a proxy in between must speak HTTP/1.1 to here and pass the Upgrade and Connection headers on"

// checkUpgrade says what is wrong with a request as an upgrade to a link. It
// looks at the request only: whether there is room, and who asks, comes after.
func checkUpgrade(r *http.Request, origins []string) *refusal {
	upgrade := map[string]string{"Upgrade": "websocket", "Connection": "Upgrade"}
	if r.URL.Path != Path {
		return refuse(http.StatusNotFound, nil, "not found: links are served at %s", Path)
	}
	if r.Method != http.MethodGet {
		return refuse(http.StatusMethodNotAllowed, map[string]string{"Allow": http.MethodGet}, "a link is opened with GET, not %.16q", r.Method)
	}
	if r.ProtoMajor != 1 || r.ProtoMinor < 1 {
		return refuse(http.StatusUpgradeRequired, upgrade, "this is a WebSocket endpoint, and %s cannot carry the upgrade: %s", r.Proto, proxyHint)
	}
	hasUpgrade, hasConnection := hasToken(r.Header, "Upgrade", "websocket"), hasToken(r.Header, "Connection", "upgrade")
	switch {
	case !hasUpgrade && !hasConnection:
		return refuse(http.StatusUpgradeRequired, upgrade, `this is a WebSocket endpoint: the headers "Upgrade: websocket" and "Connection: Upgrade" are missing; %s`, proxyHint)
	case !hasUpgrade:
		return refuse(http.StatusUpgradeRequired, upgrade, `this is a WebSocket endpoint: the header "Upgrade: websocket" is missing; %s`, proxyHint)
	case !hasConnection:
		return refuse(http.StatusBadRequest, nil, `the header "Connection: Upgrade" is missing; %s`, proxyHint)
	}
	if v := r.Header.Values("Sec-Websocket-Version"); len(v) != 1 || v[0] != "13" {
		version := map[string]string{"Sec-WebSocket-Version": "13", "Upgrade": "websocket", "Connection": "Upgrade"}
		return refuse(http.StatusUpgradeRequired, version, `the header "Sec-WebSocket-Version: 13" is missing: no other version is spoken here`)
	}
	if k := r.Header.Values("Sec-Websocket-Key"); len(k) != 1 || !isKey(k[0]) {
		return refuse(http.StatusBadRequest, nil, `the header "Sec-WebSocket-Key" is missing, or is not 16 bytes in base64`)
	}
	if r.ContentLength != 0 || len(r.TransferEncoding) > 0 {
		return refuse(http.StatusBadRequest, nil, "an upgrade has no body")
	}
	if !slices.Contains(websocket.Subprotocols(r), SubProtocol) {
		return refuse(http.StatusBadRequest, nil, `the header "Sec-WebSocket-Protocol: %s" is missing: it is the one protocol that is spoken here`, SubProtocol)
	}
	// Instances and programs send no Origin; a browser always does. Without a
	// list no page in a browser may open links (cross-site hijacking).
	if o := r.Header.Values("Origin"); len(o) > 1 || len(o) == 1 && !slices.Contains(origins, o[0]) {
		return refuse(http.StatusForbidden, nil, "pages of this origin may not open links: cluster.origins does not list it")
	}
	return nil
}

// hasToken reports whether a header that is a comma-separated list has a token,
// whatever its case.
func hasToken(h http.Header, name, token string) bool {
	for _, line := range h.Values(name) {
		for part := range strings.SplitSeq(line, ",") {
			if strings.EqualFold(strings.TrimSpace(part), token) {
				return true
			}
		}
	}
	return false
}

// isKey says whether s is a Sec-WebSocket-Key.
func isKey(s string) bool {
	b, err := base64.StdEncoding.DecodeString(s)
	return err == nil && len(b) == 16
}

// retryAfter is the header's value for a duration: whole seconds, at least one.
func retryAfter(d time.Duration) string {
	return strconv.FormatInt(max(1, int64((d+time.Second-1)/time.Second)), 10)
}
