package trust

import (
	"bytes"
	"crypto/sha1"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/binary"
	"strings"
	"unicode/utf16"
)

const (
	tagUniversalString = 28
	tagBMPString       = 30
)

// nameHash is the number by which OpenSSL finds a certificate in a folder:
// X509_NAME_hash of its subject, which is the start of SHA-1 over the canonical
// form of the name (x509_name_canon in OpenSSL's crypto/x509/x_name.c).
func nameHash(rawSubject []byte) (uint32, error) {
	var parts []asn1.RawValue
	if _, err := asn1.Unmarshal(rawSubject, &parts); err != nil {
		return 0, err
	}
	var canonical bytes.Buffer
	for _, part := range parts {
		encoded, err := canonicalPart(part.FullBytes)
		if err != nil {
			return 0, err
		}
		canonical.Write(encoded)
	}
	sum := sha1.Sum(canonical.Bytes())
	return binary.LittleEndian.Uint32(sum[:]), nil
}

func canonicalPart(encoded []byte) ([]byte, error) {
	var set pkix.RelativeDistinguishedNameSET
	var raw []struct {
		Type  asn1.ObjectIdentifier
		Value asn1.RawValue
	}
	if _, err := asn1.UnmarshalWithParams(encoded, &raw, "set"); err != nil {
		return nil, err
	}
	for _, attribute := range raw {
		value := attribute.Value
		if text, isText := textOf(value); isText {
			folded := strings.Join(strings.Fields(lowerASCII(text)), " ")
			value = asn1.RawValue{Tag: asn1.TagUTF8String, Bytes: []byte(folded)}
		}
		set = append(set, pkix.AttributeTypeAndValue{Type: attribute.Type, Value: value})
	}
	return asn1.Marshal(set) // a set by its type's name
}

// textOf returns the text of the string types that OpenSSL makes alike.
func textOf(value asn1.RawValue) (string, bool) {
	switch value.Tag {
	case asn1.TagUTF8String, asn1.TagPrintableString, asn1.TagIA5String:
		return string(value.Bytes), true
	case asn1.TagT61String:
		runes := make([]rune, len(value.Bytes))
		for i, b := range value.Bytes {
			runes[i] = rune(b)
		}
		return string(runes), true
	case tagBMPString:
		units := make([]uint16, len(value.Bytes)/2)
		for i := range units {
			units[i] = binary.BigEndian.Uint16(value.Bytes[2*i:])
		}
		return string(utf16.Decode(units)), true
	case tagUniversalString:
		runes := make([]rune, len(value.Bytes)/4)
		for i := range runes {
			runes[i] = rune(binary.BigEndian.Uint32(value.Bytes[4*i:]))
		}
		return string(runes), true
	}
	return "", false
}

func lowerASCII(text string) string {
	return strings.Map(func(r rune) rune {
		if 'A' <= r && r <= 'Z' {
			return r + 'a' - 'A'
		}
		return r
	}, text)
}
