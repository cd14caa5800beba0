package api

import (
	"net/http"
	"net/url"
	"strconv"

	"space/agent/accounts"
	"space/agent/content"
	"space/agent/fault"
	"space/agent/files"
)

// place is what the query of every files request names.
type place struct {
	path   string
	user   accounts.User
	values url.Values
}

func placeOf(r *http.Request) (p place, err error) {
	if p.values, err = query(r); err != nil {
		return p, err
	}
	if p.user, err = accounts.Resolve(p.values.Get("user")); err != nil {
		return p, err
	}
	p.path, err = files.Resolve(p.values.Get("path"), p.user)
	return p, err
}

// mode reads the optional mode, octal digits.
func (p place) mode() (*uint32, error) {
	text := p.values.Get("mode")
	if text == "" {
		return nil, nil
	}
	n, err := strconv.ParseUint(text, 8, 32)
	if err != nil || n > 0o7777 {
		return nil, fault.Invalid("mode", "must be octal digits such as 0644, at most 7777")
	}
	mode := uint32(n)
	return &mode, nil
}

// readFile serves GET and HEAD.
func (p *Public) readFile(w http.ResponseWriter, r *http.Request, _ string) error {
	at, err := placeOf(r)
	if err != nil {
		return err
	}
	file, err := files.Open(at.path)
	if err != nil {
		return err
	}
	defer file.Close()
	w.Header().Set("Content-Type", "application/octet-stream")
	return content.Serve(w, r, file, writeProblem)
}

func (p *Public) writeFile(w http.ResponseWriter, r *http.Request, _ string) error {
	at, err := placeOf(r)
	if err != nil {
		return err
	}
	mode, err := at.mode()
	if err != nil {
		return err
	}
	if r.Header.Get("Content-Range") != "" {
		// RFC 9110, 14.5: taking a part for the whole would destroy the file.
		return fault.New(http.StatusBadRequest, "bad_request", "a file is written whole; send it without Content-Range")
	}
	info, created, err := files.Write(at.path, r.Body, mode, at.user)
	if err != nil {
		return err
	}
	return writeJSON(w, createdOrOK(created), info)
}

func (p *Public) deleteFile(w http.ResponseWriter, r *http.Request, _ string) error {
	at, err := placeOf(r)
	if err != nil {
		return err
	}
	recursive, err := flag(at.values, "recursive", false)
	if err != nil {
		return err
	}
	if err := files.Remove(at.path, recursive); err != nil {
		return err
	}
	w.WriteHeader(http.StatusNoContent)
	return nil
}

func (p *Public) statFile(w http.ResponseWriter, r *http.Request, _ string) error {
	at, err := placeOf(r)
	if err != nil {
		return err
	}
	info, err := files.Stat(at.path)
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, info)
}

func (p *Public) listFiles(w http.ResponseWriter, r *http.Request, _ string) error {
	at, err := placeOf(r)
	if err != nil {
		return err
	}
	depth := 1
	if text := at.values.Get("depth"); text != "" {
		if depth, err = strconv.Atoi(text); err != nil || depth < 1 || depth > files.MaxDepth {
			return fault.Invalid("depth", "must be from 1 to %d", files.MaxDepth)
		}
	}
	entries, truncated, err := files.List(at.path, depth)
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, map[string]any{"entries": entries, "truncated": truncated})
}

func (p *Public) makeDir(w http.ResponseWriter, r *http.Request, _ string) error {
	at, err := placeOf(r)
	if err != nil {
		return err
	}
	mode, err := at.mode()
	if err != nil {
		return err
	}
	bits := uint32(0o755)
	if mode != nil {
		bits = *mode
	}
	info, created, err := files.MakeDir(at.path, bits, at.user)
	if err != nil {
		return err
	}
	return writeJSON(w, createdOrOK(created), info)
}

func (p *Public) moveFile(w http.ResponseWriter, r *http.Request, _ string) error {
	values, err := query(r)
	if err != nil {
		return err
	}
	user, err := accounts.Resolve(values.Get("user"))
	if err != nil {
		return err
	}
	var body struct {
		From      string `json:"from"`
		To        string `json:"to"`
		Overwrite bool   `json:"overwrite"`
	}
	if err := readJSON(w, r, &body); err != nil {
		return err
	}
	from, err := files.Resolve(body.From, user)
	if err != nil {
		return err
	}
	to, err := files.Resolve(body.To, user)
	if err != nil {
		return err
	}
	info, err := files.Move(from, to, body.Overwrite, user)
	if err != nil {
		return err
	}
	return writeJSON(w, http.StatusOK, info)
}

func createdOrOK(created bool) int {
	if created {
		return http.StatusCreated
	}
	return http.StatusOK
}
