// Reads a request from standard input, sends its statements with @spiceai/spice, and prints what came back as JSON.
'use strict';

const fs = require('node:fs');
const path = require('node:path');
const { SpiceClient } = require('@spiceai/spice');
const { tableToIPC } = require('apache-arrow');

const plain = (name, value) => (typeof value === 'bigint' ? value.toString() : value);

const main = async () => {
  const { directory, options, statements } = JSON.parse(fs.readFileSync(0, 'utf-8'));
  const log = [];
  for (const level of ['log', 'debug', 'info', 'warn', 'error']) {
    console[level] = (...words) => log.push(words.join(' '));
  }
  const client = new SpiceClient(options);
  const answers = [];
  for (const [position, { sql, parameters, rows }] of statements.entries()) {
    const answer = {};
    try {
      const table = await (parameters ? client.sql(sql, { parameters }) : client.sql(sql));
      answer.count = table.numRows;
      answer.rows = rows === false ? null : table.toArray();
      answer.file = path.join(directory, `${position}.arrow`);
      fs.writeFileSync(answer.file, tableToIPC(table, 'stream'));
    } catch (error) {
      answer.error = { code: error.code ?? null, message: error.message };
    }
    answer.log = log.splice(0);
    answers.push(answer);
  }
  process.stdout.write(JSON.stringify(answers, plain));
};

main();
