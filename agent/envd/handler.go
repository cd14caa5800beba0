// Package envd serves the agent's second protocol, which E2B's SDKs speak: the
// Process and Filesystem services as Connect calls, and files over plain HTTP.
// Commands and files themselves are those of the packages command and files,
// shared with the plain protocol: what one starts, the other sees.
//
// As everywhere in the agent, paths are matched as they were sent.
package envd

import (
	"encoding/json"
	"net/http"
	"strings"

	"space/agent/command"
	"space/agent/connect"
	"space/agent/content"
	"space/agent/fault"
	"space/agent/identity"
	"space/agent/usage"
)

// Handler is the protocol's server.
type Handler struct {
	identity *identity.Identity
	commands *command.Table
	watchers *watchers
	usage    *usage.Meter
	used     func() // called when a request counts as use of the sandbox
	routes   map[string]route
}

// route is what is served at a path.
type route struct {
	methods map[string]http.Handler
	open    bool // admits callers without token: it looks at them itself, or says nothing
	passive bool // is no use of the sandbox
}

// New makes the handler. It calls used at the beginning and the end of what
// counts as use.
func New(id *identity.Identity, commands *command.Table, used func()) *Handler {
	h := &Handler{identity: id, commands: commands, watchers: newWatchers(), usage: usage.New(), used: used}
	h.routes = map[string]route{
		"/health":        {methods: on("GET", http.HandlerFunc(health)), open: true, passive: true},
		"/metrics":       {methods: on("GET", h.plain(h.metrics)), passive: true},
		"/envs":          {methods: on("GET", h.plain(h.envs))},
		"/files/compose": {methods: on("POST", h.plain(h.compose))},
		"/files": {open: true, methods: map[string]http.Handler{
			"GET": h.plain(h.download), "HEAD": h.plain(h.download), "POST": h.plain(h.upload),
		}},
	}
	for name, method := range map[string]http.Handler{
		"process.Process/List":                   connect.Unary(h.listProcesses),
		"process.Process/Connect":                connect.ServerStream(h.connectProcess),
		"process.Process/Start":                  connect.ServerStream(h.startProcess),
		"process.Process/Update":                 connect.Unary(h.updateProcess),
		"process.Process/StreamInput":            connect.ClientStream(h.streamInput),
		"process.Process/SendInput":              connect.Unary(h.sendInput),
		"process.Process/SendSignal":             connect.Unary(h.sendSignal),
		"process.Process/CloseStdin":             connect.Unary(h.closeStdin),
		"filesystem.Filesystem/Stat":             connect.Unary(h.stat),
		"filesystem.Filesystem/MakeDir":          connect.Unary(h.makeDir),
		"filesystem.Filesystem/Move":             connect.Unary(h.move),
		"filesystem.Filesystem/ListDir":          connect.Unary(h.listDir),
		"filesystem.Filesystem/Remove":           connect.Unary(h.remove),
		"filesystem.Filesystem/WatchDir":         connect.ServerStream(h.watchDir),
		"filesystem.Filesystem/CreateWatcher":    connect.Unary(h.createWatcher),
		"filesystem.Filesystem/GetWatcherEvents": connect.Unary(h.watcherEvents),
		"filesystem.Filesystem/RemoveWatcher":    connect.Unary(h.removeWatcher),
	} {
		h.routes["/"+name] = route{methods: on("POST", method)}
	}
	return h
}

func on(method string, handler http.Handler) map[string]http.Handler {
	return map[string]http.Handler{method: handler}
}

// ServeHTTP admits nobody without the token to anything but what is open, not
// even to the difference between what there is and what there is not.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	allowOrigins(w.Header())
	if r.Method == http.MethodOptions {
		w.WriteHeader(http.StatusNoContent)
		return
	}
	route, known := h.routes[r.URL.EscapedPath()]
	method, served := route.methods[r.Method]
	if !route.open || !served {
		if err := h.admit(r); err != nil {
			writeError(w, err)
			return
		}
	}
	switch {
	case !known:
		writeError(w, fault.New(http.StatusNotFound, "not_found", "there is nothing at this path"))
		return
	case !served:
		for allowed := range route.methods {
			w.Header().Add("Allow", allowed)
		}
		writeError(w, fault.New(http.StatusMethodNotAllowed, "method_not_allowed", "use %s", strings.Join(w.Header()["Allow"], " or ")))
		return
	}
	if !route.passive && !route.open {
		h.used()
		defer h.used()
	}
	method.ServeHTTP(w, r)
}

// admit checks the access token.
func (h *Handler) admit(r *http.Request) error {
	err := h.identity.Admit(r.Header.Get("X-Access-Token"))
	if err != nil && fault.From(err).Status == http.StatusUnauthorized {
		return fault.New(http.StatusUnauthorized, "unauthorized",
			"unauthorized access, please provide a valid access token or method signing if supported")
	}
	return err
}

// plain serves a handler that writes nothing when it fails.
func (h *Handler) plain(handle func(w http.ResponseWriter, r *http.Request) error) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := handle(w, r); err != nil {
			content.Drain(r.Body)
			writeError(w, err)
		}
	})
}

// health says by being answered that the agent runs.
func health(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }

func (h *Handler) envs(w http.ResponseWriter, _ *http.Request) error {
	env := h.identity.Env()
	if env == nil {
		env = map[string]string{}
	}
	return writeJSON(w, env)
}

func writeJSON(w http.ResponseWriter, v any) error {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Cache-Control", "no-store")
	return json.NewEncoder(w).Encode(v)
}

// writeError answers as E2B's clients expect it: the status is also the code.
func writeError(w http.ResponseWriter, err error) {
	f := fault.From(err)
	for _, header := range []string{"Content-Length", "Content-Encoding", "Content-Disposition", "ETag", "Last-Modified"} {
		w.Header().Del(header)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(f.Status)
	data, _ := json.Marshal(struct {
		Code    int    `json:"code"`
		Message string `json:"message"`
	}{f.Status, f.Detail})
	w.Write(data) // without a line end: clients compare it
}

// allowOrigins lets pages of any origin call: the token is what counts, and no
// browser sends that by itself.
func allowOrigins(header http.Header) {
	header.Set("Access-Control-Allow-Origin", "*")
	header.Set("Access-Control-Allow-Methods", "GET, HEAD, POST, OPTIONS")
	header.Set("Access-Control-Allow-Headers", "*")
	header.Set("Access-Control-Expose-Headers", "*")
	header.Set("Access-Control-Max-Age", "7200")
}
