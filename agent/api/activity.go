package api

import (
	"net/http"
	"sync/atomic"
	"time"

	"space/agent/sockets"
)

var programStart = time.Now()

// lastUse is when the sandbox was last of use to anybody, on the clock that
// stands still while the machine does.
type lastUse struct{ at atomic.Int64 }

func (u *lastUse) note() { u.at.Store(int64(time.Since(programStart))) }

func (u *lastUse) ago() time.Duration { return time.Since(programStart) - time.Duration(u.at.Load()) }

// activity says what keeps the sandbox from being idle, and for how long
// nothing has: requests, commands in the foreground, readers of output,
// connections from outside. What goes on is noted when it is asked for, so the
// time since is as exact as the questions are frequent.
func (in *Internal) activity(w http.ResponseWriter, _ *http.Request, _ string) error {
	a := in.public.commands.Activity()
	connections, err := in.connections()
	if err != nil {
		return err
	}
	if a.Foreground > 0 || a.Readers > 0 || connections > 0 {
		in.public.use.note()
	}
	return writeJSON(w, http.StatusOK, map[string]any{
		"running_commands": a.Running, "foreground_commands": a.Foreground, "attached_readers": a.Readers,
		"open_connections": connections, "idle_ms": in.public.use.ago().Milliseconds(),
		"frozen": in.guest.Frozen(), "hook": in.hooks.Last(),
		"service": in.hooks.Service(),
	})
}

// connections counts those from outside to ports other than the agent's.
func (in *Internal) connections() (int, error) {
	return sockets.Inbound(in.peer, append(in.public.ports(), int(in.port.Load()), int(in.orders.Load()))...)
}
