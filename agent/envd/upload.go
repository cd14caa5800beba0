package envd

import (
	"compress/gzip"
	"errors"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"path/filepath"
	"strings"

	"space/agent/fault"
	"space/agent/files"
)

// uploaded is one file as an upload's answer shows it.
type uploaded struct {
	Path     string            `json:"path"`
	Name     string            `json:"name"`
	Type     string            `json:"type"`
	Metadata map[string]string `json:"metadata,omitempty"`
}

// upload writes the body to a file, or each part of a multipart body to one.
func (h *Handler) upload(w http.ResponseWriter, r *http.Request) error {
	at, err := h.openFiles(r, "write")
	if err != nil {
		return err
	}
	defer h.used()
	metadata, err := metadataOf(r.Header)
	if err != nil {
		return err
	}
	body, err := unpacked(r)
	if err != nil {
		return err
	}
	u := &upload{at: at, metadata: metadata, length: r.ContentLength, catchUp: h.watchers.catchUp, done: []uploaded{}}
	media, params, _ := mime.ParseMediaType(r.Header.Get("Content-Type"))
	switch {
	case media == "application/octet-stream" && !at.query.Has("path"):
		err = bad("path query parameter is required for raw body upload")
	case media == "application/octet-stream":
		err = u.write(at.path, body)
	case media == "multipart/form-data" && params["boundary"] != "":
		err = u.parts(multipart.NewReader(body, params["boundary"]))
	default:
		err = bad("unsupported content type: " + r.Header.Get("Content-Type") + ", expected multipart/form-data or application/octet-stream")
	}
	h.watchers.catchUp()
	if err != nil {
		return err
	}
	return writeJSON(w, u.done)
}

func bad(detail string) *fault.Fault {
	return fault.New(http.StatusBadRequest, "bad_request", "%s", detail)
}

// unpacked is the request's body without its compression.
func unpacked(r *http.Request) (io.Reader, error) {
	switch encoding := strings.ToLower(r.Header.Get("Content-Encoding")); encoding {
	case "", "identity":
		return r.Body, nil
	case "gzip":
		unpacker, err := gzip.NewReader(r.Body)
		if err != nil {
			return nil, bad("error decompressing request body: " + err.Error())
		}
		return unpacker, nil
	default:
		return nil, bad("unsupported Content-Encoding: " + encoding + ", expected gzip")
	}
}

// upload is one request's worth of files.
type upload struct {
	at       filePlace
	metadata map[string]string
	length   int64 // of the body, -1 if unknown
	catchUp  func()
	done     []uploaded
}

func (u *upload) parts(parts *multipart.Reader) error {
	for {
		part, err := parts.NextRawPart()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return bad("error reading form: " + err.Error())
		}
		if part.FormName() != "file" {
			continue
		}
		path, err := u.pathOf(part)
		if err != nil {
			return err
		}
		for _, earlier := range u.done {
			if earlier.Path == path {
				return bad("you cannot upload multiple files to the same path '" + path +
					"' in one upload request, only the first specified file was uploaded")
			}
		}
		if err := u.write(path, part); err != nil {
			return err
		}
	}
}

// pathOf is the query's path or the part's file name, with its folders, which
// mime/multipart would take off.
func (u *upload) pathOf(part *multipart.Part) (string, error) {
	if u.at.query.Has("path") {
		return u.at.path, nil
	}
	_, params, err := mime.ParseMediaType(part.Header.Get("Content-Disposition"))
	if err != nil || params["filename"] == "" {
		return "", bad("a part has no file name, and the query no path")
	}
	return resolve(params["filename"], u.at.user)
}

func (u *upload) write(path string, body io.Reader) error {
	// Folders first, and watched before there is something in them.
	if _, _, err := files.MakeDir(filepath.Dir(path), 0o755, u.at.user); err != nil {
		return uploadFailure(err, path, u.length)
	}
	u.catchUp()
	if err := files.Put(path, body, u.at.user, func(file string) error { return replaceMetadata(file, u.metadata) }); err != nil {
		return uploadFailure(err, path, u.length)
	}
	u.done = append(u.done, uploaded{Path: path, Name: filepath.Base(path), Type: "file", Metadata: u.metadata})
	return nil
}

// uploadFailure says why path was not written with a body of length bytes, -1 if
// that is unknown.
func uploadFailure(err error, path string, length int64) error {
	f := fault.From(err)
	switch {
	case f.Code == "disk_full" && length > 0:
		return fault.New(http.StatusInsufficientStorage, f.Code, "attempted to write %d bytes: not enough disk space available", length)
	case f.Code == "disk_full":
		return fault.New(http.StatusInsufficientStorage, f.Code, "not enough disk space available")
	case f.Code == "is_a_directory":
		return bad("path is a directory: " + path)
	case errors.Is(err, gzip.ErrChecksum), errors.Is(err, gzip.ErrHeader):
		return bad("error decompressing request body: " + err.Error())
	case f.Status == http.StatusConflict, f.Status == http.StatusUnprocessableEntity:
		return bad(f.Detail)
	}
	return f
}
