package openai

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"image"
	"image/color"
	"image/gif"
	"image/jpeg"
	"image/png"
	"math/rand/v2"
	"strings"
	"testing"
)

// picture is noise, so that it does not compress.
func picture(width, height int, seed uint64) image.Image {
	m := image.NewRGBA(image.Rect(0, 0, width, height))
	rand.NewChaCha8([32]byte{byte(seed)}).Read(m.Pix)
	return m
}

func encoded(t testing.TB, kind string, m image.Image) string {
	t.Helper()
	var b bytes.Buffer
	var err error
	switch kind {
	case "png":
		err = (&png.Encoder{CompressionLevel: png.NoCompression}).Encode(&b, m)
	case "jpeg":
		b.WriteString("\xff\xd8\xff\xe1\x40\x02" + strings.Repeat("x", 0x4000)) // a camera's notes
		var rest bytes.Buffer
		err = jpeg.Encode(&rest, m, nil)
		b.Write(rest.Bytes()[2:])
	case "gif":
		p := image.NewPaletted(m.Bounds(), color.Palette{color.Black, color.White})
		for i := range p.Pix {
			p.Pix[i] = uint8(i*i>>3) & 1
		}
		err = gif.Encode(&b, p, nil)
	}
	if err != nil {
		t.Fatal(err)
	}
	return base64.StdEncoding.EncodeToString(b.Bytes())
}

func promptTokens(t testing.TB, body string) int {
	t.Helper()
	req, err := Parse([]byte(body))
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, part := range req.AppendPrompt(nil, []byte(body)) {
		n += len(part)
	}
	return n / bytesPerToken
}

// TestPicturesCountBySize: a picture counts as what a model makes of its
// pixels, in whatever form it is sent, and not as the text it is written in.
func TestPicturesCountBySize(t *testing.T) {
	m := picture(560, 280, 1)
	const want = 20 * 10
	forms := map[string]string{
		"OpenAI":    `{"model":"m","messages":[{"role":"user","content":[{"type":"text","text":"What is this?"},{"type":"image_url","image_url":{"url":"data:image/%s;base64,%s"}}]}]}`,
		"Responses": `{"model":"m","input":[{"role":"user","content":[{"type":"input_image","image_url":"data:image/%s;base64,%s"}]}]}`,
		"Anthropic": `{"model":"m","messages":[{"role":"user","content":[{"type":"image","source":{"type":"base64","media_type":"image/%s", "data" : "%s"}}]}]}`,
	}
	files := map[string]string{}
	for _, kind := range []string{"png", "jpeg", "gif"} {
		files[kind] = encoded(t, kind, m)
	}
	for name, form := range forms {
		for kind, text := range files {
			body := fmt.Sprintf(form, kind, text)
			if got := promptTokens(t, body); got < want || got > want+60 {
				t.Errorf("%s, %s of %d bytes: %d tokens, want %d and the text's", name, kind, len(body), got, want)
			}
		}
	}
	large := fmt.Sprintf(forms["OpenAI"], "png", encoded(t, "png", picture(1820, 1820, 2)))
	if got := promptTokens(t, large); got < maxMediaTokens || got > maxMediaTokens+60 {
		t.Errorf("a picture of %d bytes: %d tokens, want %d", len(large), got, maxMediaTokens)
	}
	two := fmt.Sprintf(`{"model":"m","messages":[{"role":"user","content":[{"type":"image","source":{"type":"base64","data":"%s"}},
		{"type":"image_url","image_url":{"url":"data:image/png;base64,%s"}}]}]}`, encoded(t, "png", m), encoded(t, "png", picture(560, 280, 3)))
	if got := promptTokens(t, two); got < 2*want || got > 2*want+80 {
		t.Errorf("two pictures: %d tokens", got)
	}
}

// TestWebP: of the three forms of WebP, and of what says nothing of its size.
func TestWebP(t *testing.T) {
	head := func(chunk string, rest ...byte) []byte {
		b := append([]byte("RIFF\x00\x00\x00\x00WEBP"+chunk+"\x0a\x00\x00\x00"), rest...)
		return append(b, make([]byte, 20)...)
	}
	for _, c := range []struct {
		name          string
		file          []byte
		width, height int
		picture       bool
	}{
		{"lossy", head("VP8 ", 0, 0, 0, 0x9d, 0x01, 0x2a, 0x30, 0x02, 0x18, 0x01), 560, 280, true},
		{"lossless", head("VP8L", 0x2f, 0x2f, 0xc2, 0x45, 0x00), 560, 280, true},
		{"extended", head("VP8X", 0, 0, 0, 0, 0x2f, 0x02, 0, 0x17, 0x01, 0), 560, 280, true},
		{"another", head("ABCD"), 0, 0, true},
		{"sound", append([]byte("RIFF\x00\x00\x00\x00WAVEfmt "), make([]byte, 20)...), 0, 0, false},
		{"short", []byte("RIFF"), 0, 0, false},
	} {
		if w, h, picture := dimensions(c.file); w != c.width || h != c.height || picture != c.picture {
			t.Errorf("%s: %d by %d, a picture: %v", c.name, w, h, picture)
		}
	}
}

func TestSoundAndDocumentsCountByLength(t *testing.T) {
	noise := make([]byte, 300<<10)
	rand.NewChaCha8([32]byte{}).Read(noise)
	text := base64.StdEncoding.EncodeToString(noise)
	for _, body := range []string{
		`{"model":"m","messages":[{"role":"user","content":[{"type":"input_audio","input_audio":{"data":"` + text + `","format":"wav"}}]}]}`,
		`{"model":"m","input":[{"role":"user","content":[{"type":"input_file","file_data":"data:application/pdf;base64,` + text + `"}]}]}`,
	} {
		if got := promptTokens(t, body); got < 300 || got > 360 {
			t.Errorf("%.60s…: %d tokens, want about 300", body, got)
		}
	}
}

// TestPicturesTellPromptsApart: the same picture is the same prompt, another is
// another.
func TestPicturesTellPromptsApart(t *testing.T) {
	flat := func(seed uint64, question string) string {
		body := []byte(fmt.Sprintf(`{"model":"m","messages":[{"content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,%s"}},%q]}]}`,
			encoded(t, "png", picture(280, 280, seed)), question))
		req, err := Parse(body)
		if err != nil {
			t.Fatal(err)
		}
		return string(bytes.Join(req.AppendPrompt(nil, body), nil))
	}
	shared := func(a, b string) (n int) {
		for n < min(len(a), len(b)) && a[n] == b[n] {
			n++
		}
		return n
	}
	one, again, other := flat(1, "a"), flat(1, "b"), flat(2, "a")
	if n := shared(one, again); n < 400 {
		t.Errorf("questions about one picture share %d bytes", n)
	}
	if n := shared(one, other); n > 100 {
		t.Errorf("two pictures share %d bytes", n)
	}
}

// TestTextIsNoFile: what people write about files stays the text it is.
func TestTextIsNoFile(t *testing.T) {
	long := strings.Repeat("abcd", 500)
	for _, body := range []string{
		`{"model":"m","prompt":"` + long + `"}`,
		`{"model":"m","prompt":"<img src=\"data:image/png;base64,` + long + `\">"}`,
		`{"model":"m","messages":[{"content":"{\"data\":\"` + long + `\"}"}]}`,
		`{"model":"m","tools":[{"data":"` + strings.Repeat("some words ", 200) + `"}]}`,
		`{"model":"m","messages":[{"data":7,"x":"` + long + `"}]}`,
	} {
		req, err := Parse([]byte(body))
		if err != nil {
			t.Fatal(err)
		}
		parts := req.AppendPrompt(nil, []byte(body))
		if len(parts) != 1 {
			t.Errorf("%.60s…: %d parts", body, len(parts))
		}
	}
}

// FuzzMedia: whatever files say of themselves, nothing breaks, and no prompt
// gets longer than it is.
func FuzzMedia(f *testing.F) {
	f.Add([]byte(`[{"data":"` + encoded(f, "jpeg", picture(40, 40, 1)) + `"}]`))
	f.Add([]byte(`["data:image/png;base64,` + encoded(f, "png", picture(40, 40, 1)) + `"]`))
	f.Add([]byte(`"data":"` + base64.StdEncoding.EncodeToString([]byte("RIFF....WEBPVP8X"+strings.Repeat("\xff", 600))) + `"`))
	f.Fuzz(func(t *testing.T, value []byte) {
		n, files := 0, 0
		for i, part := range appendText(nil, value) {
			n += len(part)
			files += i % 2
		}
		if n > len(value)+files*bytesPerToken*maxMediaTokens {
			t.Fatalf("%d bytes became %d", len(value), n)
		}
	})
}
