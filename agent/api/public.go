package api

import (
	"io"
	"log"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"space/agent/command"
	"space/agent/content"
	"space/agent/envd"
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
	envd      *envd.Handler
	use       lastUse

	mu        sync.Mutex
	listeners []*connections
	others    []func() // see AlsoDisconnect
}

// NewPublic makes the handler.
func NewPublic(version string, id *identity.Identity, commands *command.Table) *Public {
	p := &Public{version: version, identity: id, commands: commands, keepalive: keepaliveEvery}
	p.envd = envd.New(id, commands, p.use.note)
	p.routes = []route{
		{"GET", "/v1/health", p.health},
		{"GET", "/v1/commands", p.listCommands},
		{"POST", "/v1/commands", p.startCommand},
		{"GET", "/v1/commands/{id}", p.getCommand},
		{"DELETE", "/v1/commands/{id}", p.deleteCommand},
		{"GET", "/v1/commands/{id}/output", p.readOutput},
		{"POST", "/v1/commands/{id}/stdin", p.writeStdin},
		{"POST", "/v1/commands/{id}/signal", p.signalCommand},
		{"POST", "/v1/commands/{id}/resize", p.resizeCommand},
		{"GET", "/v1/files", p.readFile},
		{"HEAD", "/v1/files", p.readFile},
		{"PUT", "/v1/files", p.writeFile},
		{"DELETE", "/v1/files", p.deleteFile},
		{"GET", "/v1/files/stat", p.statFile},
		{"GET", "/v1/files/list", p.listFiles},
		{"POST", "/v1/files/mkdir", p.makeDir},
		{"POST", "/v1/files/move", p.moveFile},
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
	for _, disconnect := range p.others {
		disconnect()
	}
}

// AlsoDisconnect has other connections ended whenever Public's own are.
func (p *Public) AlsoDisconnect(disconnect func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.others = append(p.others, disconnect)
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

// ServeHTTP tells the two protocols apart: the plain one is below /v1, and all
// else is E2B's.
func (p *Public) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !strings.HasPrefix(r.URL.EscapedPath(), "/v1/") {
		p.envd.ServeHTTP(w, r)
		return
	}
	// A handler that has begun to answer returns no error.
	body := r.Body
	if err := p.serve(w, r); err != nil {
		content.Drain(body)
		writeProblem(w, err)
	}
}

// serve admits everybody to GET /v1/health, and nobody without the token to
// anything else; not even to the difference between 404 and 405.
func (p *Public) serve(w http.ResponseWriter, r *http.Request) error {
	if r.Method != http.MethodGet || r.URL.EscapedPath() != "/v1/health" {
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
