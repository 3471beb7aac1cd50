package ops

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/pprof"
	"path"
	"strings"
	"time"
)

// Options configures a [Server].
type Options struct {
	// Unready returns why the instance should get no work, one reason each, such
	// as "draining"; nothing means that it is ready. It is called for every
	// request of /readyz and must not wait.
	Unready func() []string
	// Notes returns what is to be said beside that, one line each; nil = nothing. It is
	// called as Unready is, and decides nothing.
	Notes func() []string
	// Metrics answers /metrics; nil = there is no such page.
	Metrics http.Handler
	// Log takes what net/http has to say about broken requests, at debug level;
	// nil = nothing.
	Log *slog.Logger
}

// Server answers on the ops listener. All methods may be called concurrently.
type Server struct{ http *http.Server }

// New returns a server that answers once Serve is called.
func New(o Options) *Server {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return &Server{http: &http.Server{
		Handler:           handler(o.Unready, o.Notes, o.Metrics),
		ErrorLog:          slog.NewLogLogger(o.Log.Handler(), slog.LevelDebug),
		ReadHeaderTimeout: 5 * time.Second,
		IdleTimeout:       time.Minute,
		MaxHeaderBytes:    16 << 10,
		// No write timeout: a profile is written for as long as it was asked to run.
	}}
}

// Serve answers requests until Close and then returns nil. It closes l.
func (s *Server) Serve(l net.Listener) error {
	err := s.http.Serve(l)
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

// Close stops listening, lets requests under way finish until ctx ends, and then
// cuts them off.
func (s *Server) Close(ctx context.Context) error {
	if err := s.http.Shutdown(ctx); err != nil {
		return s.http.Close()
	}
	return nil
}

func handler(unready, notes func() []string, metrics http.Handler) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /livez", livez)
	mux.Handle("GET /readyz", readyz(unready, notes))
	if metrics != nil {
		mux.Handle("GET /metrics", metrics)
	}
	for pattern, h := range map[string]http.HandlerFunc{
		"GET /debug/pprof/":        pprof.Index,
		"GET /debug/pprof/cmdline": pprof.Cmdline,
		"GET /debug/pprof/profile": pprof.Profile,
		"GET /debug/pprof/symbol":  pprof.Symbol,
		"GET /debug/pprof/trace":   pprof.Trace,
	} {
		mux.Handle(pattern, loopbackOnly(h))
	}
	return quiet(plain(mux))
}

const (
	// bodyPatience is how long a body may take, and maxBody how large it may be, though
	// nothing here reads one: net/http waits for it before it answers, as long as it takes.
	bodyPatience = time.Second
	maxBody      = 4 << 10
)

// plain keeps out what no path here is asked with: a body that is large or does not come,
// and a path that would have to be cleaned up first, which the mux answers with a redirect.
func plain(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ContentLength != 0 {
			c := http.NewResponseController(w)
			_ = c.SetReadDeadline(time.Now().Add(bodyPatience)) // a writer without deadlines has no slow client
			if _, err := io.CopyN(io.Discard, r.Body, maxBody); !errors.Is(err, io.EOF) {
				w.Header().Set("Connection", "close")
				http.Error(w, "requests here have no body", http.StatusBadRequest)
				return
			}
			_ = c.SetReadDeadline(time.Time{})
		}
		if p := r.URL.Path; p != "*" && path.Clean(p) != strings.TrimSuffix(p, "/") && p != "/" {
			http.NotFound(w, r)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// quiet keeps answers out of caches and browsers from guessing at them.
func quiet(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "no-store")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		next.ServeHTTP(w, r)
	})
}
