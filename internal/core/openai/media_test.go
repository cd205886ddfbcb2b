package openai

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
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

// FuzzMedia: whatever files say of themselves, nothing breaks, and what
// stands for them is bounded.
func FuzzMedia(f *testing.F) {
	f.Add([]byte(`[{"data":"` + encoded(f, "jpeg", picture(40, 40, 1)) + `"}]`))
	f.Add([]byte(`["data:image/png;base64,` + encoded(f, "png", picture(40, 40, 1)) + `"]`))
	f.Add([]byte(`"data":"` + base64.StdEncoding.EncodeToString([]byte("RIFF....WEBPVP8X"+strings.Repeat("\xff", 600))) + `"`))
	for _, head := range []string{"RIFF....WAVEfmt ", "fLaC", "OggS", "ID3\x04", "\xff\xfb\x90\x00"} {
		f.Add([]byte(`"data":"` + base64.StdEncoding.EncodeToString([]byte(head+strings.Repeat("\x7f", 600))) + `","image_url":"http://a"`))
	}
	f.Fuzz(func(t *testing.T, value []byte) {
		n := 0
		for _, part := range appendText(nil, value, new(maxPlaceholders)) {
			n += len(part)
		}
		if n > len(value)+maxPlaceholders {
			t.Fatalf("%d bytes became %d", len(value), n)
		}
	})
}

// TestSoundCountsByLength: each format by what it states of its length, and by its
// size where that cannot be so.
func TestSoundCountsByLength(t *testing.T) {
	le, be := binary.LittleEndian, binary.BigEndian
	pad := func(b []byte, size int) []byte { return append(b, make([]byte, size-len(b))...) }
	wav := func(data uint32) []byte {
		b := append([]byte("RIFF\x00\x00\x00\x00WAVELIST\x04\x00\x00\x00abcdfmt \x10\x00\x00\x00\x01\x00\x01\x00"), 0x80, 0x3e, 0, 0) // 16 kHz
		b = le.AppendUint32(b, 32_000)
		return le.AppendUint32(append(b, "\x02\x00\x10\x00data"...), data)
	}
	flac := append([]byte("fLaC\x00\x00\x00\x22"), make([]byte, 10)...)
	flac = be.AppendUint64(flac, 16_000<<44|1<<41|15<<36|16_000*8)
	ogg := func(first string, samples uint64) []byte {
		b := pad(append(pad([]byte("OggS"), 28), first...), 90_000)
		return append(pad(le.AppendUint64(append(b, "OggS\x00\x04"...), samples), 90_000+27), 1)
	}
	mp3 := []byte{0xff, 0xfb, 0x90, 0x00} // MPEG 1, 128 kbit/s, 44.1 kHz
	xing := append(append(append([]byte{}, mp3...), make([]byte, 32)...), "Xing\x00\x00\x00\x01"...)
	xing = be.AppendUint32(xing, 383) // 10 s of 1,152 samples
	for name, c := range map[string]struct {
		file   []byte
		tokens int
	}{
		"WAV":                      {pad(wav(320_000), 321_000), 250},
		"WAV as it is written":     {pad(wav(0xffffffff), 320_060), 250},
		"FLAC":                     {pad(flac, 50_000), 200},
		"Opus":                     {ogg("OpusHead\x01\x01", 48_000*6), 150},
		"Vorbis":                   {ogg("\x01vorbis\x00\x00\x00\x00\x01\x80\x3e\x00\x00", 16_000*4), 100},
		"MP3":                      {pad(mp3, 160_000), 250},
		"MP3 with notes":           {append([]byte("ID3\x04\x00\x00\x00\x00\x02\x00"+strings.Repeat("x", 256)), pad(mp3, 160_000)...), 250},
		"MP3 of changing bitrates": {pad(xing, 100_000), 250},
		"a claim of days":          {pad(append(append([]byte{}, flac[:18]...), 0x03, 0xe8, 0x02, 0xff, 0xff, 0xff, 0xff, 0xff), 40_000), 1000},
		"no frame of layer 3":      {pad([]byte{0xff, 0xe1, 0x90}, 102_400), 100},
	} {
		got := mediaTokens([]byte(base64.StdEncoding.EncodeToString(c.file)))
		if got < c.tokens-2 || got > c.tokens+2 {
			t.Errorf("%s: %d tokens, want %d", name, got, c.tokens)
		}
	}
}

// TestRemotePictures: a picture that the server is to fetch counts as one of usual
// size, other URLs as text.
func TestRemotePictures(t *testing.T) {
	for body, want := range map[string]int{
		`{"model":"m","messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"https://a.example/1.png"}}]}]}`:                                     1,
		`{"model":"m","input":[{"role":"user","content":[{"type":"input_image","image_url":"http://a.example/1.png"},{"type":"input_image","image_url":"http://b"}]}]}`: 2,
		`{"model":"m","messages":[{"role":"user","content":[{"type":"image","source":{"type":"url","url":"https://a.example/1.png"}}]}]}`:                               1,
		`{"model":"m","messages":[{"role":"assistant","content":"see","annotations":[{"type":"url_citation","url":"https://a.example"}]}]}`:                             0,
		`{"model":"m","messages":[{"role":"user","content":"\"image_url\": \"https://a.example/1.png\""}]}`:                                                             0,
	} {
		if got := promptTokens(t, body); got < want*remoteTokens || got > want*remoteTokens+60 {
			t.Errorf("%s: %d tokens, want %d and the text's", body, got, want*remoteTokens)
		}
	}
	a, b := `{"model":"m","input":[{"image_url":"http://a"}]}`, `{"model":"m","input":[{"image_url":"http://b"}]}`
	if text := func(body string) string {
		req, err := Parse([]byte(body))
		if err != nil {
			t.Fatal(err)
		}
		return string(bytes.Join(req.AppendPrompt(nil, []byte(body)), nil))
	}; text(a) == text(b) {
		t.Error("a prompt's text does not tell pictures apart")
	}
}

// TestManyFiles: however many files a body names, what stands for them is bounded.
func TestManyFiles(t *testing.T) {
	head := base64.StdEncoding.EncodeToString(append([]byte("\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR\x00\x0f\x00\x00\x00\x0f\x00\x00"), make([]byte, 400)...))
	body := `{"model":"m","input":[` + strings.Repeat(`{"image_url":"http://a"},{"data":"`+head+`"},`, 2000) + `{}]}`
	req, err := Parse([]byte(body))
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, part := range req.AppendPrompt(nil, []byte(body)) {
		n += len(part)
	}
	if n > len(body)+maxPlaceholders+64<<10 || n < maxPlaceholders {
		t.Errorf("a body of %d bytes has a prompt of %d", len(body), n)
	}
}
