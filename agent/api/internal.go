package api

import (
	"net"
	"net/http"
	"os"
	"strings"

	"space/agent/command"
	"space/agent/identity"
)

// Internal is the handler for the worker. Its listener lets nobody else in; it
// asks for no token because it is where the token comes from.
type Internal struct {
	version  string
	identity *identity.Identity
	commands *command.Table
	shutdown func()
	routes   []route
}

// NewInternal makes the handler. shutdown is called after POST /shutdown was answered.
func NewInternal(version string, id *identity.Identity, commands *command.Table, shutdown func()) *Internal {
	in := &Internal{version: version, identity: id, commands: commands, shutdown: shutdown}
	in.routes = []route{
		{"GET", "/health", in.health},
		{"POST", "/init", in.init},
		{"GET", "/activity", in.activity},
		{"POST", "/shutdown", in.shutDown},
	}
	return in
}

// Serve answers the peer with this address, until the listener is closed.
func (in *Internal) Serve(l net.Listener, peer net.IP) error {
	return newServer(in).Serve(peerListener{l, peer})
}

func (in *Internal) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if err := dispatch(in.routes, w, r); err != nil {
		writeProblem(w, err)
	}
}

func (in *Internal) health(w http.ResponseWriter, _ *http.Request, _ string) error {
	return writeJSON(w, http.StatusOK, map[string]any{
		"status": "ok", "version": in.version, "sandbox_id": orNull(in.identity.SandboxID()),
	})
}

func (in *Internal) init(w http.ResponseWriter, r *http.Request, _ string) error {
	var facts identity.Facts
	if err := readJSON(w, r, &facts); err != nil {
		return err
	}
	if err := facts.Validate(); err != nil {
		return err
	}
	if err := command.CheckEnv(facts.Env); err != nil {
		return err
	}
	warnings, err := in.identity.Apply(facts)
	if err != nil {
		return err
	}
	boot, _ := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return writeJSON(w, http.StatusOK, map[string]any{
		"version": in.version, "boot_id": strings.TrimSpace(string(boot)), "warnings": append([]string{}, warnings...),
	})
}

func (in *Internal) activity(w http.ResponseWriter, _ *http.Request, _ string) error {
	a := in.commands.Activity()
	return writeJSON(w, http.StatusOK, map[string]int{
		"running_commands": a.Running, "foreground_commands": a.Foreground, "attached_readers": a.Readers,
	})
}

func (in *Internal) shutDown(w http.ResponseWriter, _ *http.Request, _ string) error {
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
