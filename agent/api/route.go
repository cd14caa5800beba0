// Package api is the agent's HTTP border: it reads requests, calls the packages
// that do the work, and writes what they say. Two handlers, for two listeners:
// Public is reached through the data plane, Internal by the worker alone.
//
// Paths are matched as they were sent, byte by byte. There is no cleaning, no
// decoding and no redirect that another program on the way could see
// differently: "//commands" and "/%63ommands" do not exist.
package api

import (
	"encoding/json"
	"net/http"
	"net/url"
	"strings"

	"space/agent/fault"
)

// route is one endpoint. In its pattern "{id}" stands for one segment.
type route struct {
	method  string
	pattern string
	handle  func(w http.ResponseWriter, r *http.Request, id string) error
}

// dispatch calls the handler of a request, or says why there is none.
func dispatch(routes []route, w http.ResponseWriter, r *http.Request) error {
	path := r.URL.EscapedPath()
	var allowed []string
	for _, route := range routes {
		id, ok := match(route.pattern, path)
		if !ok {
			continue
		}
		if route.method == r.Method {
			return route.handle(w, r, id)
		}
		allowed = append(allowed, route.method)
	}
	if allowed == nil {
		return fault.New(http.StatusNotFound, "not_found", "there is nothing at this path")
	}
	w.Header().Set("Allow", strings.Join(allowed, ", "))
	return fault.New(http.StatusMethodNotAllowed, "method_not_allowed", "use %s", strings.Join(allowed, " or "))
}

func match(pattern, path string) (id string, ok bool) {
	before, after, variable := strings.Cut(pattern, "{id}")
	if !variable {
		return "", pattern == path
	}
	if len(path) <= len(before)+len(after) || !strings.HasPrefix(path, before) || !strings.HasSuffix(path, after) {
		return "", false
	}
	id = path[len(before) : len(path)-len(after)]
	return id, !strings.ContainsAny(id, "/%")
}

// writeProblem answers with RFC 9457 problem details.
func writeProblem(w http.ResponseWriter, err error) {
	f := fault.From(err)
	w.Header().Del("Content-Length")
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(f.Status)
	encode(w, struct {
		Type   string `json:"type"`
		Title  string `json:"title"`
		Status int    `json:"status"`
		Code   string `json:"code"`
		Detail string `json:"detail"`
	}{"about:blank", http.StatusText(f.Status), f.Status, f.Code, f.Detail})
}

func writeJSON(w http.ResponseWriter, status int, v any) error {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	encode(w, v)
	return nil
}

// encode writes JSON for programs: no HTML escapes, so that command lines stay readable.
func encode(w http.ResponseWriter, v any) {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	e.Encode(v)
}

// query parses the query strictly; url.Values.Get on r.URL.Query() would drop
// what it does not understand and act on the rest.
func query(r *http.Request) (url.Values, error) {
	values, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, fault.New(http.StatusBadRequest, "bad_request", "the query string is not valid: %v", err)
	}
	return values, nil
}

// flag reads an optional boolean of a query.
func flag(values url.Values, name string, otherwise bool) (bool, error) {
	switch values.Get(name) {
	case "":
		return otherwise, nil
	case "true", "1":
		return true, nil
	case "false", "0":
		return false, nil
	}
	return false, fault.Invalid(name, "must be true or false")
}
