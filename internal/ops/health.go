package ops

import (
	"encoding/json"
	"net/http"
	"strings"
)

func livez(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_, _ = w.Write([]byte("ok\n"))
}

// readyz answers text, or JSON to who prefers it.
func readyz(unready func() []string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		reasons := unready()
		status := http.StatusOK
		if len(reasons) > 0 {
			status = http.StatusServiceUnavailable
		}
		if strings.Contains(r.Header.Get("Accept"), "application/json") {
			body, err := json.Marshal(struct {
				Ready   bool     `json:"ready"`
				Reasons []string `json:"reasons,omitempty"`
			}{len(reasons) == 0, reasons})
			if err != nil { // two plain fields: cannot be
				http.Error(w, "internal", http.StatusInternalServerError)
				return
			}
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(status)
			_, _ = w.Write(append(body, '\n'))
			return
		}
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		w.WriteHeader(status)
		if len(reasons) == 0 {
			reasons = []string{"ok"}
		}
		_, _ = w.Write([]byte(strings.Join(reasons, "\n") + "\n"))
	})
}
