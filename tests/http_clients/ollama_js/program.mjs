// The unmodified `ollama` for JavaScript against a running service. `node program.mjs`, in the folder of its packages.
import assert from 'node:assert/strict'
import { Ollama } from 'ollama'

const model = process.env.PACELINE_MODEL
const client = new Ollama({ host: `http://${process.env.PACELINE_HTTP}` })
const messages = [{ role: 'user', content: 'List three fruits.' }]
const options = { temperature: 0 }

const whole = await client.chat({ model, messages, options })
assert.ok(whole.message.content, 'no text')
let text = ''
let last
for await (const piece of await client.chat({ model, messages, options, stream: true })) {
  text += piece.message.content
  last = piece
}
assert.equal(text, whole.message.content)
assert.deepEqual([last.done, last.done_reason, last.eval_count], [true, 'stop', whole.eval_count])
const generated = await client.generate({ model, prompt: messages[0].content, options })
assert.equal(generated.response, whole.message.content)
const turns = [...messages, whole.message, { role: 'user', content: 'And three birds?' }]
const second = await client.chat({ model, messages: turns, options: { ...options, num_predict: 16 } })
assert.ok(second.message.content, 'no second turn')
const rows = { type: 'integer', minimum: 40, maximum: 49 }
const format = { type: 'object', properties: { rows }, required: ['rows'] }
const shelf = JSON.parse((await client.chat({ model, messages, options, format })).message.content)
assert.ok(shelf.rows >= 40 && shelf.rows <= 49, JSON.stringify(shelf))
const { models } = await client.list()
assert.equal(models[0].name, `${model}:latest`)
assert.ok((await client.show({ model })).capabilities.includes('completion'))
assert.equal((await client.ps()).models.length, 1)
assert.ok((await client.version()).version)
await assert.rejects(client.chat({ model, messages, options: { temperature: 900 } }), /options\.temperature/)
