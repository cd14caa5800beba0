package connect

import (
	"reflect"
	"strings"
	"testing"
)

type kind int32

func (kind) Number(name string) (int32, bool) {
	n, ok := map[string]int32{"KIND_A": 1, "KIND_B": 2}[name]
	return n, ok
}

type inner struct {
	SomeText *string `json:"someText,omitempty"`
}

type message struct {
	Name    string            `json:"name"`
	Flag    *bool             `json:"flag"`
	Small   uint32            `json:"smallNumber"`
	Big     int64             `json:"bigNumber"`
	Data    []byte            `json:"data"`
	Maybe   *[]byte           `json:"maybe"`
	List    []string          `json:"list"`
	Env     map[string]string `json:"env"`
	Kind    kind              `json:"kind"`
	Inner   *inner            `json:"inner"`
	Innards []inner           `json:"innards"`
}

func TestDecodesWhatClientsSend(t *testing.T) {
	text, truth, data := "x", true, []byte{0xfb, 0xff}
	for in, want := range map[string]message{
		`{}`: {},
		`{"name":"a<b\u00e9","flag":true,"unknown":[1,{"a":null}]}`:   {Name: "a<bé", Flag: &truth},
		`{"smallNumber":5,"bigNumber":"-9223372036854775808"}`:        {Small: 5, Big: -1 << 63},
		`{"small_number":"5","big_number":9007199254740993}`:          {Small: 5, Big: 9007199254740993},
		`{"smallNumber":5.0,"bigNumber":1e3}`:                         {Small: 5, Big: 1000},
		`{"data":"+/8=","maybe":"-_8"}`:                               {Data: data, Maybe: &data},
		`{"maybe":""}`:                                                {Maybe: new([]byte)},
		`{"list":["a",""],"env":{"camelCase":"1","snake_case":""}}`:   {List: []string{"a", ""}, Env: map[string]string{"camelCase": "1", "snake_case": ""}},
		`{"kind":"KIND_B"}`:                                           {Kind: 2},
		`{"kind":7}`:                                                  {Kind: 7},
		`{"inner":{"someText":"x"},"innards":[{},{"some_text":"x"}]}`: {Inner: &inner{&text}, Innards: []inner{{}, {&text}}},
		`{"inner":{},"name":null,"list":null,"flag":null}`:            {Inner: &inner{}},
	} {
		var got message
		if err := decode([]byte(in), &got); err != nil {
			t.Errorf("%s: %v", in, err)
			continue
		}
		if got.Maybe != nil && len(*got.Maybe) == 0 {
			got.Maybe, want.Maybe = nil, nil
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v", in, got)
		}
	}
}

func TestRefusesWhatIsNoMessage(t *testing.T) {
	for in, about := range map[string]string{
		``: "JSON", `[]`: "object", `"x"`: "object", `null`: "object", `{} {}`: "followed", `{`: "JSON", "{\"name\":\"\xff\"}": "UTF-8",
		`{"name":5}`: "name", `{"flag":"true"}`: "flag", `{"smallNumber":-1}`: "smallNumber", `{"smallNumber":4294967296}`: "range",
		`{"smallNumber":1.5}`: "whole", `{"bigNumber":1e30}`: "whole", `{"data":"*"}`: "base64", `{"data":5}`: "base64", `{"list":{}}`: "list",
		`{"list":[null]}`: "null", `{"env":[]}`: "object", `{"env":{"A":1}}`: "string", `{"env":{"A":null}}`: "null", `{"kind":"NONE"}`: "NONE",
		`{"inner":5}`: "inner", `{"innards":[{"someText":5}]}`: "someText", `{"smallNumber":true}`: "number",
	} {
		err := decode([]byte(in), &message{})
		if err == nil || !strings.Contains(err.Error(), about) || asError(err).Code != InvalidArgument {
			t.Errorf("%s: %v", in, err)
		}
	}
}
