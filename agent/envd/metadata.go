package envd

import (
	"errors"
	"net/http"
	"strings"
	"syscall"
)

const (
	// metadataHeader begins the headers whose values are noted on an uploaded file.
	metadataHeader = "X-Metadata-"
	// maxKey is the kernel's limit for an attribute's name, in bytes (XATTR_NAME_MAX).
	maxKey = 255 - len(metadataPrefix)
)

// metadataOf reads the headers. Keys are lower-case, since header names have no case.
func metadataOf(header http.Header) (map[string]string, error) {
	var metadata map[string]string
	for name, values := range header {
		if !strings.HasPrefix(name, metadataHeader) {
			continue
		}
		key := strings.ToLower(strings.TrimPrefix(name, metadataHeader))
		switch {
		case key == "":
			continue
		case len(key) > maxKey:
			return nil, bad("metadata key " + key[:32] + "... is too long")
		case !printable(key):
			return nil, bad("metadata key " + key + " must be printable ASCII")
		case len(values[0]) > maxAttribute:
			return nil, bad("the value of metadata key " + key + " is too long")
		case !printable(values[0]):
			return nil, bad("the value of metadata key " + key + " must be printable ASCII")
		}
		if metadata == nil {
			metadata = map[string]string{}
		}
		metadata[key] = values[0]
	}
	return metadata, nil
}

func printable(text string) bool {
	for i := 0; i < len(text); i++ {
		if text[i] < 0x20 || text[i] > 0x7e {
			return false
		}
	}
	return true
}

// replaceMetadata makes metadata all that is noted on a file.
func replaceMetadata(path string, metadata map[string]string) error {
	for _, name := range attributes(path) {
		if _, kept := metadata[strings.TrimPrefix(name, metadataPrefix)]; !kept {
			if err := syscall.Removexattr(path, name); err != nil && err != syscall.ENODATA {
				return err
			}
		}
	}
	for key, value := range metadata {
		err := syscall.Setxattr(path, metadataPrefix+key, []byte(value), 0)
		if errors.Is(err, syscall.ENOTSUP) || errors.Is(err, syscall.ERANGE) || errors.Is(err, syscall.E2BIG) || errors.Is(err, syscall.ENOSPC) {
			return bad("the file system of " + path + " cannot keep this metadata: " + err.Error())
		}
		if err != nil {
			return err
		}
	}
	return nil
}
