package connect

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"reflect"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Enum is a field whose values have names: they arrive as name or number.
type Enum interface {
	// Number is the value that a name stands for.
	Number(name string) (int32, bool)
}

// decode reads the JSON form of a protobuf message into v, a pointer to a
// struct: names in camel or snake case, numbers also as strings, bytes in any
// base64, enums by name or number, null for absent. What it does not know it
// ignores, so that newer clients can talk to an older agent.
func decode(data []byte, v any) error {
	if !utf8.Valid(data) {
		return Errorf(InvalidArgument, "the message is not UTF-8")
	}
	reader := json.NewDecoder(bytes.NewReader(data))
	reader.UseNumber()
	var tree any
	if err := reader.Decode(&tree); err != nil {
		return Errorf(InvalidArgument, "the message is not JSON: %v", err)
	}
	if _, err := reader.Token(); err != io.EOF {
		return Errorf(InvalidArgument, "the message is followed by something else")
	}
	if _, ok := tree.(map[string]any); !ok {
		return Errorf(InvalidArgument, "the message is not a JSON object")
	}
	if err := fill(reflect.ValueOf(v).Elem(), tree); err != nil {
		return Errorf(InvalidArgument, "%v", err)
	}
	return nil
}

func fill(to reflect.Value, from any) error {
	if from == nil {
		return nil
	}
	if enum, ok := to.Interface().(Enum); ok {
		return fillEnum(to, enum, from)
	}
	switch to.Kind() {
	case reflect.Pointer:
		to.Set(reflect.New(to.Type().Elem()))
		return fill(to.Elem(), from)
	case reflect.Struct:
		return fillStruct(to, from)
	case reflect.Map:
		return fillMap(to, from)
	case reflect.Slice:
		if to.Type().Elem().Kind() == reflect.Uint8 {
			return fillBytes(to, from)
		}
		return fillList(to, from)
	case reflect.String:
		text, ok := from.(string)
		if !ok {
			return fmt.Errorf("must be a string")
		}
		to.SetString(text)
		return nil
	case reflect.Bool:
		truth, ok := from.(bool)
		if !ok {
			return fmt.Errorf("must be true or false")
		}
		to.SetBool(truth)
		return nil
	}
	return fillNumber(to, from)
}

func fillStruct(to reflect.Value, from any) error {
	object, ok := from.(map[string]any)
	if !ok {
		return fmt.Errorf("must be an object")
	}
	for i := 0; i < to.NumField(); i++ {
		name, _, _ := strings.Cut(to.Type().Field(i).Tag.Get("json"), ",")
		value, found := object[name]
		if !found {
			value = object[snake(name)]
		}
		if err := fill(to.Field(i), value); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
	}
	return nil
}

// snake writes "symlinkTarget" as "symlink_target".
func snake(name string) string {
	var out strings.Builder
	for _, letter := range name {
		if letter >= 'A' && letter <= 'Z' {
			out.WriteByte('_')
			letter += 'a' - 'A'
		}
		out.WriteRune(letter)
	}
	return out.String()
}

func fillMap(to reflect.Value, from any) error {
	object, ok := from.(map[string]any)
	if !ok {
		return fmt.Errorf("must be an object")
	}
	made := reflect.MakeMapWithSize(to.Type(), len(object))
	for key, value := range object {
		item := reflect.New(to.Type().Elem()).Elem()
		if value == nil {
			return fmt.Errorf("%q: must not be null", key)
		}
		if err := fill(item, value); err != nil {
			return fmt.Errorf("%q: %w", key, err)
		}
		made.SetMapIndex(reflect.ValueOf(key), item)
	}
	to.Set(made)
	return nil
}

func fillList(to reflect.Value, from any) error {
	list, ok := from.([]any)
	if !ok {
		return fmt.Errorf("must be a list")
	}
	made := reflect.MakeSlice(to.Type(), len(list), len(list))
	for i, value := range list {
		if value == nil {
			return fmt.Errorf("[%d]: must not be null", i)
		}
		if err := fill(made.Index(i), value); err != nil {
			return fmt.Errorf("[%d]: %w", i, err)
		}
	}
	to.Set(made)
	return nil
}

// fillBytes takes both alphabets of base64, with or without padding.
func fillBytes(to reflect.Value, from any) error {
	text, ok := from.(string)
	if !ok {
		return fmt.Errorf("must be a base64 string")
	}
	text = strings.TrimRight(text, "=")
	encoding := base64.RawStdEncoding
	if strings.ContainsAny(text, "-_") {
		encoding = base64.RawURLEncoding
	}
	data, err := encoding.DecodeString(text)
	if err != nil {
		return fmt.Errorf("must be base64: %w", err)
	}
	to.SetBytes(data)
	return nil
}

func fillEnum(to reflect.Value, enum Enum, from any) error {
	if name, ok := from.(string); ok {
		if number, known := enum.Number(name); known {
			to.SetInt(int64(number))
			return nil
		}
		return fmt.Errorf("there is no %q", name)
	}
	return fillNumber(to, from)
}

// fillNumber takes 5, "5" and 5.0.
func fillNumber(to reflect.Value, from any) error {
	var text string
	switch n := from.(type) {
	case json.Number:
		text = n.String()
	case string:
		text = n
	default:
		return fmt.Errorf("must be a number")
	}
	number, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		float, e := strconv.ParseFloat(text, 64)
		if e != nil || float != math.Trunc(float) || math.Abs(float) >= 1<<63 {
			return fmt.Errorf("must be a whole number")
		}
		number = int64(float)
	}
	switch to.Kind() {
	case reflect.Int, reflect.Int32, reflect.Int64:
		if to.OverflowInt(number) {
			return fmt.Errorf("is out of range")
		}
		to.SetInt(number)
	case reflect.Uint32, reflect.Uint64:
		if number < 0 || to.OverflowUint(uint64(number)) {
			return fmt.Errorf("is out of range")
		}
		to.SetUint(uint64(number))
	default:
		panic("connect: a message has a field of kind " + to.Kind().String())
	}
	return nil
}
