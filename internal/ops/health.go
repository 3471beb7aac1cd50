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

// readyz answers text, or JSON to who prefers it. Notes are for people, and change no
// answer: what was given up is no reason to send work elsewhere that others here do.
func readyz(unready, notes func() []string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		reasons := unready()
		var remarks []string
		if notes != nil {
			remarks = notes()
		}
		status := http.StatusOK
		if len(reasons) > 0 {
			status = http.StatusServiceUnavailable
		}
		if strings.Contains(r.Header.Get("Accept"), "application/json") {
			body, err := json.Marshal(struct {
				Ready   bool     `json:"ready"`
				Reasons []string `json:"reasons,omitempty"`
				Notes   []string `json:"notes,omitempty"`
			}{len(reasons) == 0, reasons, remarks})
			if err != nil { // plain fields: cannot be
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
		_, _ = w.Write([]byte(strings.Join(append(reasons, remarks...), "\n") + "\n"))
	})
}
