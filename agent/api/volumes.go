package api

import (
	"net"
	"net/http"
	"path"
	"strings"

	"space/agent/fault"
	"space/agent/mount"
)

// attachVolume mounts a volume, or finds it mounted, and makes the connection that
// the request came on the way to its server: FUSE requests go out on it, and the
// answers come in. The worker hands its end to the server.
func (in *Internal) attachVolume(w http.ResponseWriter, r *http.Request, _ string) error {
	var body mount.Volume
	if err := readJSON(w, r, &body); err != nil {
		return err
	}
	if body.ID == "" {
		return fault.Invalid("volume", "must be given")
	}
	if !strings.HasPrefix(body.Path, "/") || path.Clean(body.Path) != body.Path || body.Path == "/" {
		return fault.Invalid("path", "must be an absolute path below /, without '.', '..' and double slashes")
	}
	hijacker, ok := w.(http.Hijacker)
	if !ok {
		return fault.New(http.StatusInternalServerError, "internal", "the connection cannot be taken over")
	}
	return in.volumes.Attach(body, func() (net.Conn, error) {
		conn, _, err := hijacker.Hijack()
		if err != nil {
			return nil, err
		}
		_, err = conn.Write([]byte("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: space-volume\r\n\r\n"))
		return conn, err
	})
}
