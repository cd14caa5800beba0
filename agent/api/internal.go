package api

import (
	"net"
	"net/http"
	"sync"
	"sync/atomic"

	"space/agent/hook"
	"space/agent/mount"
	"space/agent/quiesce"
	"space/agent/usage"
)

// Internal is the handler for the worker. Its listener lets nobody else in; it
// asks for no token because it is where the token comes from.
type Internal struct {
	public   *Public
	guest    *quiesce.Guest
	hooks    *hook.Runner
	peer     net.IP
	port     atomic.Int64 // of the requests
	orders   atomic.Int64 // of the orders
	shutdown func()
	usage    *usage.Meter
	volumes  *mount.Table
	routes   []route

	mu      sync.Mutex
	servers []*http.Server // of the requests
}

// NewInternal makes the handler for the worker, which has the address peer.
// shutdown is called after POST /shutdown was answered.
func NewInternal(public *Public, guest *quiesce.Guest, hooks *hook.Runner, peer net.IP, shutdown func()) *Internal {
	in := &Internal{public: public, guest: guest, hooks: hooks, peer: peer, shutdown: shutdown, usage: usage.New(), volumes: mount.New()}
	in.routes = []route{
		{"GET", "/health", in.health},
		{"POST", "/init", in.init},
		{"POST", "/ready", in.ready},
		{"POST", "/warm", in.warm},
		{"GET", "/activity", in.activity},
		{"GET", "/metrics", in.metrics},
		{"POST", "/volumes", in.attachVolume},
		{"POST", "/shutdown", in.shutDown},
	}
	in.routes = append(in.routes, in.layerRoutes()...)
	return in
}

// Serve answers the peer, until the listener is closed.
func (in *Internal) Serve(l net.Listener) error {
	in.port.Store(int64(l.Addr().(*net.TCPAddr).Port))
	return in.serverOf(in).Serve(peerListener{l, in.peer})
}

func (in *Internal) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if err := dispatch(in.routes, w, r); err != nil {
		writeProblem(w, err)
	}
}

// health says ready when a command would be started. That the machine has
// booted is said by there being an answer.
func (in *Internal) health(w http.ResponseWriter, _ *http.Request, _ string) error {
	sandbox, frozen := in.public.identity.SandboxID(), in.guest.Frozen()
	return writeJSON(w, http.StatusOK, map[string]any{
		"status": "ok", "version": in.public.version, "sandbox_id": orNull(sandbox),
		"ready": sandbox != "" && !frozen, "frozen": frozen,
	})
}

// metrics says what is in use, the processors' share since it was asked last.
func (in *Internal) metrics(w http.ResponseWriter, _ *http.Request, _ string) error {
	figures, err := in.usage.Measure()
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, figures)
}

func (in *Internal) shutDown(w http.ResponseWriter, _ *http.Request, _ string) error {
	in.guest.Thaw(true) // who is stopped cannot end
	w.Header().Set("Connection", "close")
	w.WriteHeader(http.StatusAccepted)
	w.(http.Flusher).Flush()
	go in.shutdown()
	return nil
}

// peerListener accepts connections of one address and closes all others unread.
type peerListener struct {
	net.Listener
	peer net.IP
}

func (l peerListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if from, ok := conn.RemoteAddr().(*net.TCPAddr); ok && from.IP.Equal(l.peer) {
			return conn, nil
		}
		conn.Close()
	}
}
