package api

import (
	"net/http"
	"strconv"
	"strings"

	"space/agent/accounts"
	"space/agent/content"
	"space/agent/defaults"
	"space/agent/fault"
	"space/agent/layer"
)

// layerRoutes are what a template build asks for beside commands.
func (in *Internal) layerRoutes() []route {
	return []route{
		{"POST", "/layer/copy", in.copyIntoLayer},
		{"POST", "/layer/user", in.makeLayerUser},
		{"POST", "/layer/workdir", in.makeLayerWorkdir},
		{"POST", "/layer/path", in.setLayerPath},
		{"POST", "/layer/furnish", in.furnishLayer},
		{"POST", "/layer/finish", in.finishLayer},
	}
}

// copyIntoLayer takes an archive as its body, and what to do with it from the query.
func (in *Internal) copyIntoLayer(w http.ResponseWriter, r *http.Request, _ string) error {
	values, err := query(r)
	if err != nil {
		return err
	}
	spec := layer.CopySpec{
		Source: values.Get("source"), Target: values.Get("target"), Workdir: values.Get("workdir"),
	}
	if spec.UID, spec.GID, err = ownerOf(values.Get("owner"), values.Get("user")); err != nil {
		return err
	}
	if spec.Mode, err = (place{values: values}).mode(); err != nil {
		return err
	}
	written, err := layer.Copy(r.Body, spec)
	if err != nil {
		content.Drain(r.Body)
		return err
	}
	return writeJSON(w, http.StatusOK, map[string]any{"written": written})
}

// ownerOf reads "user", "user:group", numbers too; "" is otherwise, a user.
func ownerOf(owner, otherwise string) (uid, gid int, err error) {
	if owner == "" {
		owner = otherwise
	}
	who, group, hasGroup := strings.Cut(owner, ":")
	user, err := accounts.Resolve(who)
	if err != nil {
		id, e := strconv.ParseUint(who, 10, 31)
		if e != nil {
			return 0, 0, err
		}
		user = accounts.User{UID: uint32(id), GID: uint32(id)} // nobody's, as chown(1) takes it
	}
	uid, gid = int(user.UID), int(user.GID)
	if hasGroup {
		id, ok := accounts.GroupID(group)
		if !ok {
			return 0, 0, fault.Invalid("owner", "there is no group %q", group)
		}
		gid = int(id)
	}
	return uid, gid, nil
}

func (in *Internal) makeLayerUser(w http.ResponseWriter, r *http.Request, _ string) error {
	var body struct {
		Name string `json:"name"`
		Sudo bool   `json:"sudo"`
	}
	if err := readJSON(w, r, &body); err != nil {
		return err
	}
	user, err := layer.EnsureUser(body.Name, body.Sudo)
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, map[string]any{"name": user.Name, "uid": user.UID, "home": user.Home})
}

func (in *Internal) makeLayerWorkdir(w http.ResponseWriter, r *http.Request, _ string) error {
	var body struct {
		Path string `json:"path"`
		User string `json:"user"`
	}
	if err := readJSON(w, r, &body); err != nil {
		return err
	}
	user, err := accounts.Resolve(body.User)
	if err != nil {
		return err
	}
	if !strings.HasPrefix(body.Path, "/") {
		return fault.Invalid("path", "must be absolute")
	}
	if err := layer.MakeWorkdir(body.Path, user); err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, map[string]any{})
}

func (in *Internal) setLayerPath(w http.ResponseWriter, r *http.Request, _ string) error {
	var body struct {
		Path string `json:"path"`
	}
	if err := readJSON(w, r, &body); err != nil {
		return err
	}
	if err := layer.SetPath(body.Path); err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, map[string]any{})
}

func (in *Internal) furnishLayer(w http.ResponseWriter, _ *http.Request, _ string) error {
	if err := layer.Furnish(); err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, map[string]any{})
}

func (in *Internal) finishLayer(w http.ResponseWriter, r *http.Request, _ string) error {
	var body struct {
		Defaults defaults.Defaults `json:"defaults"`
		Start    string            `json:"start"`
		Ready    string            `json:"ready"`
	}
	if err := readJSON(w, r, &body); err != nil {
		return err
	}
	if err := layer.Finish(body.Defaults, body.Start, body.Ready); err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, map[string]any{})
}
