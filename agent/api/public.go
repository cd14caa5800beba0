package api

import (
	"io"
	"log"
	"net"
	"net/http"
	"sync"
	"time"

	"space/agent/command"
	"space/agent/identity"
)

// discard is for the server's own remarks on broken connections; the console
// is shared with the kernel and small.
var discard = log.New(io.Discard, "", 0)

// Public is the handler the data plane reaches, and everybody in the guest.
type Public struct {
	version   string
	identity  *identity.Identity
	commands  *command.Table
	keepalive time.Duration
	routes    []route
	use       lastUse

	mu        sync.Mutex
	listeners []*connections
}

// NewPublic makes the handler.
func NewPublic(version string, id *identity.Identity, commands *command.Table) *Public {
	p := &Public{version: version, identity: id, commands: commands, keepalive: keepaliveEvery}
	p.routes = []route{
		{"GET", "/health", p.health},
		{"GET", "/commands", p.listCommands},
		{"POST", "/commands", p.startCommand},
		{"GET", "/commands/{id}", p.getCommand},
		{"DELETE", "/commands/{id}", p.deleteCommand},
		{"GET", "/commands/{id}/output", p.readOutput},
		{"POST", "/commands/{id}/stdin", p.writeStdin},
		{"POST", "/commands/{id}/signal", p.signalCommand},
		{"POST", "/commands/{id}/resize", p.resizeCommand},
		{"GET", "/files", p.readFile},
		{"HEAD", "/files", p.readFile},
		{"PUT", "/files", p.writeFile},
		{"DELETE", "/files", p.deleteFile},
		{"GET", "/files/stat", p.statFile},
		{"GET", "/files/list", p.listFiles},
		{"POST", "/files/mkdir", p.makeDir},
		{"POST", "/files/move", p.moveFile},
	}
	return p
}

// Serve answers on a TCP listener until it is closed.
func (p *Public) Serve(l net.Listener) error {
	kept := newConnections(l)
	p.mu.Lock()
	p.listeners = append(p.listeners, kept)
	p.mu.Unlock()
	return newServer(p).Serve(kept)
}

// disconnect ends all connections, and with them their requests and readers.
// Commands and their output stay.
func (p *Public) disconnect() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, l := range p.listeners {
		l.closeAll()
	}
}

// ports are the ones Public is reached at.
func (p *Public) ports() (ports []int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, l := range p.listeners {
		ports = append(ports, l.Addr().(*net.TCPAddr).Port)
	}
	return ports
}

func (p *Public) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	// A handler that has begun to answer returns no error.
	body := r.Body
	if err := p.serve(w, r); err != nil {
		drain(body)
		writeProblem(w, err)
	}
}

// serve admits everybody to GET /health, and nobody without the token to
// anything else; not even to the difference between 404 and 405.
func (p *Public) serve(w http.ResponseWriter, r *http.Request) error {
	if r.Method != http.MethodGet || r.URL.EscapedPath() != "/health" {
		if err := p.identity.Admit(r.Header.Get("X-Access-Token")); err != nil {
			return err
		}
		p.use.note()
		defer p.use.note()
	}
	return dispatch(p.routes, w, r)
}

func (p *Public) health(w http.ResponseWriter, _ *http.Request, _ string) error {
	return writeJSON(w, http.StatusOK, map[string]any{
		"status": "ok", "version": p.version, "sandbox_id": orNull(p.identity.SandboxID()),
	})
}
