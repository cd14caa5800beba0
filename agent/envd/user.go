package envd

import (
	"errors"
	"net/http"
	"strings"

	"space/agent/accounts"
	"space/agent/connect"
	"space/agent/defaults"
	"space/agent/fault"
	"space/agent/files"
)

// caller is the user that a call is made for: the name of its Basic
// authorization, of which the password is of no account, or the default user.
func caller(r *http.Request) (accounts.User, error) {
	name, _, _ := r.BasicAuth()
	user, err := lookUp(name)
	if err != nil {
		return user, connect.Errorf(connect.Unauthenticated, "%s", fault.From(err).Detail)
	}
	return user, nil
}

func lookUp(name string) (accounts.User, error) {
	user, err := accounts.Resolve(name)
	if err != nil {
		return user, fault.New(http.StatusUnauthorized, "no_such_user", "invalid username: '%s'", name)
	}
	return user, nil
}

// resolve makes a path absolute and clean: "" is the template's folder or the
// user's home, "~" the home, and a relative path begins there.
func resolve(path string, user accounts.User) (string, error) {
	if path == "" {
		if path = defaults.Read().Workdir; path == "" {
			path = user.Home
		}
	}
	if path == "~" || strings.HasPrefix(path, "~/") {
		path = user.Home + path[1:]
	} else if strings.HasPrefix(path, "~") {
		return "", fault.New(http.StatusBadRequest, "invalid_path", "%s: cannot expand user-specific home dir", path)
	}
	resolved, err := files.Resolve(path, user)
	if err != nil {
		return "", fault.New(http.StatusBadRequest, "invalid_path", "%s", fault.From(err).Detail)
	}
	return resolved, nil
}

// codes are what a fault's status is called in a call.
var codes = map[int]connect.Code{
	http.StatusBadRequest:          connect.InvalidArgument,
	http.StatusUnauthorized:        connect.Unauthenticated,
	http.StatusForbidden:           connect.PermissionDenied,
	http.StatusNotFound:            connect.NotFound,
	http.StatusConflict:            connect.FailedPrecondition,
	http.StatusUnprocessableEntity: connect.InvalidArgument,
}

// failure makes a fault an error of a call. A sandbox that has no room left is
// "internal": clients would take "unavailable" for its end, and
// "resource_exhausted" for a limit on their requests.
func failure(err error) error {
	var known *connect.Error
	var f *fault.Fault
	if err == nil || errors.As(err, &known) || !errors.As(err, &f) {
		return err
	}
	code, ok := codes[f.Status]
	switch {
	case f.Code == "not_started":
		code = connect.Unavailable
	case f.Code == "already_exists":
		code = connect.AlreadyExists
	case !ok:
		code = connect.Internal
	}
	return connect.Errorf(code, "%s", f.Detail)
}
